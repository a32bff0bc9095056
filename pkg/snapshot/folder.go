// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Name is the name of the snapshot file in its folder.
const Name = "node-cache.snapshot"

// tempPrefix starts the names of temporary files. Each writer appends its own suffix, so that two
// writers of one folder never share a file.
const tempPrefix = Name + ".tmp-"

// A Folder is the part of a file system that snapshots need. [Dir] is the real one.
type Folder interface {
	// Make creates the folder if it does not exist. It fails if other users could replace files in it.
	Make() error
	// Create creates a file for writing. It fails if the file exists.
	Create(name string) (File, error)
	// Rename renames a file and replaces an existing file of the new name.
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes the names in the folder durable.
	Sync() error
	// Open opens a file that belongs to the process's user or to root and that no other user can
	// write. It also returns the size.
	Open(name string) (io.ReadCloser, int64, error)
	// List returns the modification times of the files by name.
	List() (map[string]time.Time, error)
	// String returns the path of the folder.
	String() string
}

// A File is open for writing.
type File interface {
	io.WriteCloser
	// Sync makes the written bytes durable.
	Sync() error
}

func path(f Folder) string { return filepath.Join(f.String(), Name) }

// A Dir is the path of a folder in the file system.
type Dir string

var errFolder = errors.New("the directory belongs to another user or is writable by others")

// Make implements [Folder]. The new directory is accessible to its owner only. Its parent must exist.
func (d Dir) Make() error {
	if err := os.Mkdir(string(d), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return d.check()
}

// check returns an error unless the directory belongs to the process's user or to root and no other
// user can replace files in it. A user who can write to a parent directory can only put another
// directory in its place that passes this check.
func (d Dir) check() error {
	info, err := os.Stat(string(d))
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return syscall.ENOTDIR
	}
	if err := filewatch.CheckOwner(info); err != nil {
		return errFolder
	}
	return nil
}

// Create implements [Folder].
func (d Dir) Create(name string) (File, error) {
	return os.OpenFile(filepath.Join(string(d), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Rename implements [Folder].
func (d Dir) Rename(from, to string) error {
	return os.Rename(filepath.Join(string(d), from), filepath.Join(string(d), to))
}

// Remove implements [Folder].
func (d Dir) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

// Sync implements [Folder].
func (d Dir) Sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Open implements [Folder]. It does not follow symbolic links and does not block on pipes.
func (d Dir) Open(name string) (io.ReadCloser, int64, error) {
	if err := d.check(); err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(filepath.Join(string(d), name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("not a regular file: %s", info.Mode())
	}
	if err == nil {
		err = filewatch.CheckOwner(info)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// List implements [Folder]. It skips everything but regular files.
func (d Dir) List() (map[string]time.Time, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	list := make(map[string]time.Time)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), Name) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			list[e.Name()] = info.ModTime()
		}
	}
	return list, nil
}

// String implements [Folder].
func (d Dir) String() string { return string(d) }
