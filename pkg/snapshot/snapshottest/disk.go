// SPDX-License-Identifier: Apache-2.0

// Package snapshottest has a disk in memory for tests of snapshots.
package snapshottest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// ErrStopped is the error of a [Disk] operation after the simulated process stopped.
var ErrStopped = errors.New("process stopped")

// A Disk is an in-memory [snapshot.Folder] that can fail or stop at every operation and every byte written,
// and that can simulate a crash of the host. It is safe for concurrent use.
type Disk struct {
	mu          sync.Mutex       // guards the fields below and the data of all files
	created     bool             // the folder exists
	names       map[string]*data // as a process sees them
	syncedNames map[string]*data // as they are after a host crash
	steps       int              // operations and written bytes so far
	failStep    int              // the step that fails; 0: none
	failErr     error            // error of that one step; nil: the process stops there
	now         time.Time
}

// data is the content of one file.
type data struct {
	content []byte // as a process sees it
	synced  []byte // as it is after a host crash
	modTime time.Time
}

// NewDisk returns a disk on which the folder does not exist.
func NewDisk() *Disk {
	return &Disk{names: map[string]*data{}, syncedNames: map[string]*data{}}
}

// SetTime sets the modification time of files written from now on.
func (d *Disk) SetTime(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
}

// Steps returns the number of steps since the last call of StopAt or FailAt.
func (d *Disk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// StopAt stops the process before the given step, counted from 1; 0 never stops it. A write that is
// stopped keeps the bytes written before.
func (d *Disk) StopAt(step int) { d.setFailure(step, nil) }

// FailAt makes the given step, and no other, fail with err.
func (d *Disk) FailAt(step int, err error) { d.setFailure(step, err) }

func (d *Disk) setFailure(step int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps, d.failStep, d.failErr = 0, step, err
}

// A CrashLoss is the unsynced data that a crash loses.
type CrashLoss uint8

// Kinds of loss.
const (
	LoseNothing CrashLoss = iota // only the process stops
	LoseContent                  // keeps names
	LoseNames                    // keeps content
	LoseAll
	LoseHalf // keeps names and the first half of the content

	NumLosses // number of kinds
)

// Reopen returns the disk as the next process finds it after the loss. It does not change d.
func (d *Disk) Reopen(l CrashLoss) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &Disk{created: d.created, names: map[string]*data{}, now: d.now}
	from := d.names
	if l == LoseNames || l == LoseAll {
		from = d.syncedNames
	}
	for name, f := range from {
		content := f.content
		switch l {
		case LoseContent, LoseAll:
			content = f.synced
		case LoseHalf:
			content = f.content[:max(len(f.synced), len(f.content)/2)]
		default:
		}
		next.names[name] = &data{content: bytes.Clone(content), synced: bytes.Clone(content), modTime: f.modTime}
	}
	next.syncedNames = maps.Clone(next.names)
	return next
}

// WriteFile stores a synced file.
func (d *Disk) WriteFile(name string, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.created = true
	f := &data{content: bytes.Clone(content), synced: bytes.Clone(content), modTime: d.now}
	d.names[name], d.syncedNames[name] = f, f
}

// Content returns the content of a file, nil if it does not exist.
func (d *Disk) Content(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return bytes.Clone(f.content)
	}
	return nil
}

// Names returns the sorted file names.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// step counts one step and calls do under the lock, or returns the error of the step that fails.
func (d *Disk) step(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	return do()
}

// stepLocked counts one step, or returns the error of the step that fails.
func (d *Disk) stepLocked() error {
	if d.failStep > 0 && d.failErr == nil && d.steps+1 >= d.failStep {
		return ErrStopped
	}
	d.steps++
	if d.steps == d.failStep {
		return d.failErr
	}
	return nil
}

// Make implements [snapshot.Folder].
func (d *Disk) Make() error {
	return d.step(func() error {
		d.created = true
		return nil
	})
}

// Create implements [snapshot.Folder].
func (d *Disk) Create(name string) (f snapshot.File, err error) {
	err = d.step(func() error {
		switch {
		case !d.created:
			return fs.ErrNotExist
		case d.names[name] != nil:
			return fs.ErrExist
		}
		d.names[name] = &data{modTime: d.now}
		f = &file{disk: d, data: d.names[name]}
		return nil
	})
	return f, err
}

// Rename implements [snapshot.Folder].
func (d *Disk) Rename(from, to string) error {
	return d.step(func() error {
		f := d.names[from]
		if f == nil {
			return fs.ErrNotExist
		}
		delete(d.names, from)
		d.names[to] = f
		return nil
	})
}

// Remove implements [snapshot.Folder].
func (d *Disk) Remove(name string) error {
	return d.step(func() error {
		if d.names[name] == nil {
			return fs.ErrNotExist
		}
		delete(d.names, name)
		return nil
	})
}

// Sync implements [snapshot.Folder].
func (d *Disk) Sync() error {
	return d.step(func() error {
		d.syncedNames = maps.Clone(d.names)
		return nil
	})
}

// Open implements [snapshot.Folder].
func (d *Disk) Open(name string) (r io.ReadCloser, size int64, err error) {
	err = d.step(func() error {
		f := d.names[name]
		if f == nil {
			return fs.ErrNotExist
		}
		r, size = io.NopCloser(bytes.NewReader(bytes.Clone(f.content))), int64(len(f.content))
		return nil
	})
	return r, size, err
}

// List implements [snapshot.Folder].
func (d *Disk) List() (list map[string]time.Time, err error) {
	err = d.step(func() error {
		list = make(map[string]time.Time, len(d.names))
		for name, f := range d.names {
			list[name] = f.modTime
		}
		return nil
	})
	return list, err
}

// String implements [snapshot.Folder].
func (d *Disk) String() string { return "/disk" }

// A file is an open file. It keeps its content when its name is removed.
type file struct {
	disk   *Disk
	data   *data
	closed bool
}

// Write implements [snapshot.File].
func (f *file) Write(b []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, fs.ErrClosed
	}
	for i := range b {
		if err := f.disk.stepLocked(); err != nil {
			return i, err
		}
		f.data.content = append(f.data.content, b[i])
	}
	f.data.modTime = f.disk.now
	return len(b), nil
}

// Sync implements [snapshot.File].
func (f *file) Sync() error {
	return f.disk.step(func() error {
		if f.closed {
			return syscall.EBADF
		}
		f.data.synced = bytes.Clone(f.data.content)
		return nil
	})
}

// Close implements [snapshot.File].
func (f *file) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return f.disk.stepLocked()
}

var _ snapshot.Folder = (*Disk)(nil)
