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

// Name is the snapshot's name in its folder.
const Name = "node-cache.snapshot"

// temporary begins the names under which snapshots are written. Each writer has names of its own, so that two on one
// folder never write into one file.
const temporary = Name + ".tmp-"

// A Folder is the little that is needed of a file system. [Dir] is one, and [Disk] a fake.
type Folder interface {
	// Make makes the folder if it is not there. It is an error if others could exchange the files in it.
	Make() error
	// Create makes a file for writing that is not there yet.
	Create(name string) (File, error)
	// Rename gives a file another name, and takes that from the file that has it.
	Rename(from, to string) error
	Remove(name string) error
	// Sync returns once the names in the folder would outlive the machine's end.
	Sync() error
	// Open opens a file that belongs to this process's user or to root and that no other user may write to, and tells its
	// size.
	Open(name string) (io.ReadCloser, int64, error)
	// List lists the files by name, with the time each was last written to.
	List() (map[string]time.Time, error)
	// String is the folder's path.
	String() string
}

// A File is one that is written to.
type File interface {
	io.WriteCloser
	// Sync returns once what was written would outlive the machine's end.
	Sync() error
}

func file(f Folder) string { return filepath.Join(f.String(), Name) }

// A Dir is the folder with that path.
type Dir string

var errFolder = errors.New("its folder belongs to another user, or others may write to it")

// Make implements [Folder]. The folder is for its owner alone. Those above it must be there.
func (d Dir) Make() error {
	if err := os.Mkdir(string(d), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return d.check()
}

// check returns an error unless the folder belongs to this process's user or to root and no other user can put another
// file in the place of one. Who may write to a folder above it can exchange it for another such folder only.
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

// Open implements [Folder]. Links are not followed, and what is no file is not waited for.
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
		err = fmt.Errorf("it is no file: %s", info.Mode())
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

// List implements [Folder]. What is no file is left out.
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
