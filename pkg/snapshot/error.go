// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// An Error says which file something is wrong with, and what.
type Error struct {
	File string
	Err  error  // what is wrong; of Load, fs.ErrNotExist if there is no file
	Hint string // what can be done about it; may be empty
}

// Error implements error.
func (e *Error) Error() string { return "snapshot " + e.File + ": " + e.Err.Error() }

// Unwrap gives what is wrong.
func (e *Error) Unwrap() error { return e.Err }

const (
	hintReplaced = "nothing has to be done: the next snapshot takes its place"
	hintNoFolder = "snapshot.folder is to name a folder"
	hintFolder   = "name a folder of the user that node-cache runs as, or of root, that no other user may write to; one that is not there is made so"
)

// saving names the file of an error that Save met.
func saving(f Folder, err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "while it is written the folder holds it twice: give it twice snapshot.size, or lower that"
	case errors.Is(err, errFolder):
		hint = hintFolder
	case errors.Is(err, syscall.EROFS):
		hint = "mount the volume without readOnly, or choose another snapshot.folder"
	case errors.Is(err, fs.ErrPermission):
		hint = "let the user that node-cache runs as write to snapshot.folder"
	case errors.Is(err, fs.ErrNotExist):
		hint = "make the folder that snapshot.folder is in; only the last one is made here"
	case errors.Is(err, context.DeadlineExceeded):
		hint = "the file system is slow: put snapshot.folder on a tmpfs"
	case errors.Is(err, syscall.ENOTDIR):
		hint = hintNoFolder
	case errors.Is(err, fs.ErrExist): // what is no folder would have been replaced
		hint = "take away what is there: it is a folder, and the snapshot a file"
	}
	return &Error{File: file(f), Err: err, Hint: hint}
}

// refusing names the file that Load does not believe.
func refusing(f Folder, err error) error {
	hint := hintReplaced
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = ""
	case errors.Is(err, syscall.ENOTDIR):
		hint = hintNoFolder
	case errors.Is(err, errFolder):
		hint = hintFolder
	case errors.Is(err, fs.ErrPermission), errors.Is(err, filewatch.ErrUntrusted):
		hint = "the file is to belong to the user that node-cache runs as, or to root, and nobody else may write to it"
	}
	return &Error{File: file(f), Err: err, Hint: hint}
}
