// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// An Error names the snapshot file and the problem.
type Error struct {
	File string
	Err  error  // the cause; Load returns fs.ErrNotExist if there is no file
	Hint string // what the operator can do; may be empty
}

// Error implements error.
func (e *Error) Error() string { return "snapshot " + e.File + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

const (
	hintNothingToDo  = "no action needed: the next snapshot replaces it"
	hintNotDirectory = "set snapshot.folder to a directory"
	hintFolder       = "set snapshot.folder to a directory owned by the user of node-cache or by root, and not writable by others; node-cache creates it if it does not exist"
)

// saveError wraps an error of Save with the file and a hint.
func saveError(f Folder, err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "writing needs space for two snapshots: provide twice snapshot.size, or lower snapshot.size"
	case errors.Is(err, errFolder):
		hint = hintFolder
	case errors.Is(err, syscall.EROFS):
		hint = "mount the volume without readOnly, or choose another snapshot.folder"
	case errors.Is(err, fs.ErrPermission):
		hint = "give the user of node-cache write permission on snapshot.folder"
	case errors.Is(err, fs.ErrNotExist):
		hint = "create the parent directory of snapshot.folder; node-cache creates only the last directory"
	case errors.Is(err, context.DeadlineExceeded):
		hint = "the file system is slow: put snapshot.folder on a tmpfs"
	case errors.Is(err, syscall.ENOTDIR):
		hint = hintNotDirectory
	case errors.Is(err, fs.ErrExist): // rename replaces anything but a directory
		hint = "remove the directory that has the name of the snapshot file"
	}
	return &Error{File: path(f), Err: err, Hint: hint}
}

// loadError wraps an error of Load with the file and a hint.
func loadError(f Folder, err error) error {
	hint := hintNothingToDo
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = ""
	case errors.Is(err, syscall.ENOTDIR):
		hint = hintNotDirectory
	case errors.Is(err, errFolder):
		hint = hintFolder
	case errors.Is(err, fs.ErrPermission), errors.Is(err, filewatch.ErrUntrusted):
		hint = "chown the file to the user of node-cache or to root, and run chmod go-w on it"
	}
	return &Error{File: path(f), Err: err, Hint: hint}
}
