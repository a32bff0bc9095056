// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/hint"
)

const (
	hintNothingToDo  = "no action needed: the next snapshot replaces it"
	hintNotDirectory = "set snapshot.folder to a directory"
	hintFolder       = "set snapshot.folder to a directory owned by the user of node-cache or by root, and not writable by others; node-cache creates it if it does not exist"
)

// saveError wraps an error of Save with the file and a hint.
func saveError(f Folder, err error) error {
	advice := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = "writing needs space for two snapshots: provide twice snapshot.size, or lower snapshot.size"
	case errors.Is(err, errFolder):
		advice = hintFolder
	case errors.Is(err, syscall.EROFS):
		advice = "mount the volume without readOnly, or choose another snapshot.folder"
	case errors.Is(err, fs.ErrPermission):
		advice = "give the user of node-cache write permission on snapshot.folder"
	case errors.Is(err, fs.ErrNotExist):
		advice = "create the parent directory of snapshot.folder; node-cache creates only the last directory"
	case errors.Is(err, context.DeadlineExceeded):
		advice = "the file system is slow: put snapshot.folder on a tmpfs"
	case errors.Is(err, syscall.ENOTDIR):
		advice = hintNotDirectory
	case errors.Is(err, fs.ErrExist): // rename replaces anything but a directory
		advice = "remove the directory that has the name of the snapshot file"
	}
	return hinted(f, err, advice)
}

// loadError wraps an error of Load with the file and a hint.
func loadError(f Folder, err error) error {
	advice := hintNothingToDo
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = ""
	case errors.Is(err, syscall.ENOTDIR):
		advice = hintNotDirectory
	case errors.Is(err, errFolder):
		advice = hintFolder
	case errors.Is(err, fs.ErrPermission), errors.Is(err, filewatch.ErrUntrusted):
		advice = "chown the file to the user of node-cache or to root, and run chmod go-w on it"
	}
	return hinted(f, err, advice)
}

// hinted returns an error that names the file.
func hinted(f Folder, err error, advice string) error {
	return &hint.Error{Err: fmt.Errorf("snapshot %s: %w", path(f), err), Hint: advice}
}
