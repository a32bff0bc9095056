// SPDX-License-Identifier: Apache-2.0

package snapshot

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
)

// ErrStopped is the error of a [FakeDisk] operation after the simulated process stopped.
var ErrStopped = errors.New("process stopped")

// A FakeDisk is an in-memory [Folder] that can fail or stop at every operation and every byte written,
// and that can simulate a crash of the host. It is safe for concurrent use.
type FakeDisk struct {
	mu          sync.Mutex           // guards all below
	created     bool                 // the folder exists
	names       map[string]*fakeData // as a process sees them
	syncedNames map[string]*fakeData // as they are after a host crash
	steps       int                  // operations and written bytes so far
	failStep    int                  // the step that fails; 0: none
	failErr     error                // error of that one step; nil: the process stops there
	now         time.Time
}

// fakeData is the content of one file.
type fakeData struct {
	content []byte // as a process sees it
	synced  []byte // as it is after a host crash
	modTime time.Time
}

// NewFakeDisk returns a disk on which the folder does not exist.
func NewFakeDisk() *FakeDisk {
	return &FakeDisk{names: map[string]*fakeData{}, syncedNames: map[string]*fakeData{}}
}

// SetTime sets the modification time of files written from now on.
func (d *FakeDisk) SetTime(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
}

// Steps returns the number of steps since the last call of StopAt or FailAt.
func (d *FakeDisk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// StopAt stops the process before the given step, counted from 1; 0 never stops it. A write that is
// stopped keeps the bytes written before.
func (d *FakeDisk) StopAt(step int) { d.setFailure(step, nil) }

// FailAt makes the given step, and no other, fail with err.
func (d *FakeDisk) FailAt(step int, err error) { d.setFailure(step, err) }

func (d *FakeDisk) setFailure(step int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps, d.failStep, d.failErr = 0, step, err
}

// A CrashLoss says which unsynced data a crash loses.
type CrashLoss uint8

// Kinds of loss.
const (
	LoseNothing CrashLoss = iota // only the process stops
	LoseContent                  // keeps names
	LoseNames                    // keeps content
	LoseAll
	LoseHalf // keeps names and the first half of the content

	crashLossCount
)

// CrashLosses lists all kinds of loss.
func CrashLosses() []CrashLoss {
	list := make([]CrashLoss, crashLossCount)
	for i := range list {
		list[i] = CrashLoss(i)
	}
	return list
}

// Reopen returns the disk as the next process finds it after the loss. It does not change d.
func (d *FakeDisk) Reopen(l CrashLoss) *FakeDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &FakeDisk{created: d.created, names: map[string]*fakeData{}, now: d.now}
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
		next.names[name] = &fakeData{content: bytes.Clone(content), synced: bytes.Clone(content), modTime: f.modTime}
	}
	next.syncedNames = maps.Clone(next.names)
	return next
}

// WriteFile stores a synced file.
func (d *FakeDisk) WriteFile(name string, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.created = true
	f := &fakeData{content: bytes.Clone(content), synced: bytes.Clone(content), modTime: d.now}
	d.names[name], d.syncedNames[name] = f, f
}

// Content returns the content of a file, nil if it does not exist.
func (d *FakeDisk) Content(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return bytes.Clone(f.content)
	}
	return nil
}

// Names returns the sorted file names.
func (d *FakeDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// stepLocked counts one step, or returns the error of the step that fails.
func (d *FakeDisk) stepLocked() error {
	if d.failStep > 0 && d.failErr == nil && d.steps+1 >= d.failStep {
		return ErrStopped
	}
	d.steps++
	if d.steps == d.failStep {
		return d.failErr
	}
	return nil
}

// Make implements [Folder].
func (d *FakeDisk) Make() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	d.created = true
	return nil
}

// Create implements [Folder].
func (d *FakeDisk) Create(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, err
	}
	if !d.created {
		return nil, fs.ErrNotExist
	}
	if d.names[name] != nil {
		return nil, fs.ErrExist
	}
	f := &fakeData{modTime: d.now}
	d.names[name] = f
	return &fakeFile{disk: d, data: f}, nil
}

// Rename implements [Folder].
func (d *FakeDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	f := d.names[from]
	if f == nil {
		return fs.ErrNotExist
	}
	delete(d.names, from)
	d.names[to] = f
	return nil
}

// Remove implements [Folder].
func (d *FakeDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	if d.names[name] == nil {
		return fs.ErrNotExist
	}
	delete(d.names, name)
	return nil
}

// Sync implements [Folder].
func (d *FakeDisk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	d.syncedNames = maps.Clone(d.names)
	return nil
}

// Open implements [Folder].
func (d *FakeDisk) Open(name string) (io.ReadCloser, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, 0, err
	}
	f := d.names[name]
	if f == nil {
		return nil, 0, fs.ErrNotExist
	}
	content := bytes.Clone(f.content)
	return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
}

// List implements [Folder].
func (d *FakeDisk) List() (map[string]time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, err
	}
	list := make(map[string]time.Time, len(d.names))
	for name, f := range d.names {
		list[name] = f.modTime
	}
	return list, nil
}

// String implements [Folder].
func (d *FakeDisk) String() string { return "/disk" }

// A fakeFile is an open file. It keeps its content when its name is removed.
type fakeFile struct {
	disk   *FakeDisk
	data   *fakeData
	closed bool
}

// Write implements [File].
func (f *fakeFile) Write(b []byte) (int, error) {
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

// Sync implements [File].
func (f *fakeFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.stepLocked(); err != nil {
		return err
	}
	if f.closed {
		return syscall.EBADF
	}
	f.data.synced = bytes.Clone(f.data.content)
	return nil
}

// Close implements [File].
func (f *fakeFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return f.disk.stepLocked()
}

var (
	_ Folder = (*FakeDisk)(nil)
	_ Folder = Dir("")
)
