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

// ErrStopped is what a [Disk] says to a process that it has stopped.
var ErrStopped = errors.New("the process has ended")

// A Disk is a fake [Folder]: a file system that can fail or stop at every operation and every octet, and whose machine
// can end. It is safe for use by many goroutines.
type Disk struct {
	mu    sync.Mutex       // guards all below
	made  bool             // the folder is there
	names map[string]*data // as a process sees them
	safe  map[string]*data // as they are found after the machine's end
	steps int              // taken so far: one for each operation, and for each octet written
	stop  int              // the step that is not taken; 0: all are
	fail  error            // of that step alone; nil: the process ends there
	now   time.Time
}

// data is a file.
type data struct {
	octets []byte // as a process sees them
	safe   []byte // as they are found after the machine's end
	at     time.Time
}

// NewDisk makes a disk without the folder.
func NewDisk() *Disk {
	return &Disk{names: map[string]*data{}, safe: map[string]*data{}}
}

// SetTime is the time that files written from now on have.
func (d *Disk) SetTime(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = now
}

// Steps is how many steps were taken since the last call of StopAt or FailAt.
func (d *Disk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// StopAt has the process end before its step-th step from now on, counted from 1; 0: not at all. Of a write the octets
// before are written.
func (d *Disk) StopAt(step int) { d.set(step, nil) }

// FailAt has that step fail, and no other.
func (d *Disk) FailAt(step int, err error) { d.set(step, err) }

func (d *Disk) set(step int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps, d.stop, d.fail = 0, step, err
}

// A Loss says what becomes of what was not synced when a machine ends.
type Loss uint8

// The losses.
const (
	LoseNothing Loss = iota // it is the process that ends, not the machine
	LoseOctets              // names are kept
	LoseNames               // octets are kept
	LoseAll
	LoseHalf // names are kept, and the first half of the octets

	losses
)

// Losses lists them.
func Losses() []Loss {
	list := make([]Loss, losses)
	for i := range list {
		list[i] = Loss(i)
	}
	return list
}

// After is the disk as the next process finds it, with the loss. The disk itself stays.
func (d *Disk) After(l Loss) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &Disk{made: d.made, names: map[string]*data{}, now: d.now}
	from := d.names
	if l == LoseNames || l == LoseAll {
		from = d.safe
	}
	for name, f := range from {
		octets := f.octets
		switch l {
		case LoseOctets, LoseAll:
			octets = f.safe
		case LoseHalf:
			octets = f.octets[:max(len(f.safe), len(f.octets)/2)]
		default:
		}
		next.names[name] = &data{octets: bytes.Clone(octets), safe: bytes.Clone(octets), at: f.at}
	}
	next.safe = maps.Clone(next.names)
	return next
}

// Put makes a file, synced.
func (d *Disk) Put(name string, octets []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = true
	f := &data{octets: bytes.Clone(octets), safe: bytes.Clone(octets), at: d.now}
	d.names[name], d.safe[name] = f, f
}

// Octets is what a file holds, nil if it is not there.
func (d *Disk) Octets(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return bytes.Clone(f.octets)
	}
	return nil
}

// Names are the files there are, sorted.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// stepLocked takes a step, or says why not.
func (d *Disk) stepLocked() error {
	if d.stop > 0 && d.fail == nil && d.steps+1 >= d.stop {
		return ErrStopped
	}
	d.steps++
	if d.steps == d.stop {
		return d.fail
	}
	return nil
}

// Make implements [Folder].
func (d *Disk) Make() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	d.made = true
	return nil
}

// Create implements [Folder].
func (d *Disk) Create(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, err
	}
	if !d.made {
		return nil, fs.ErrNotExist
	}
	if d.names[name] != nil {
		return nil, fs.ErrExist
	}
	f := &data{at: d.now}
	d.names[name] = f
	return &diskFile{disk: d, data: f}, nil
}

// Rename implements [Folder].
func (d *Disk) Rename(from, to string) error {
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
func (d *Disk) Remove(name string) error {
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
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return err
	}
	d.safe = maps.Clone(d.names)
	return nil
}

// Open implements [Folder].
func (d *Disk) Open(name string) (io.ReadCloser, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, 0, err
	}
	f := d.names[name]
	if f == nil {
		return nil, 0, fs.ErrNotExist
	}
	octets := bytes.Clone(f.octets)
	return io.NopCloser(bytes.NewReader(octets)), int64(len(octets)), nil
}

// List implements [Folder].
func (d *Disk) List() (map[string]time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.stepLocked(); err != nil {
		return nil, err
	}
	list := make(map[string]time.Time, len(d.names))
	for name, f := range d.names {
		list[name] = f.at
	}
	return list, nil
}

// String implements [Folder].
func (d *Disk) String() string { return "/disk" }

// A diskFile is a file that is open. Its octets stay with it when its name goes.
type diskFile struct {
	disk   *Disk
	data   *data
	closed bool
}

// Write implements [File].
func (f *diskFile) Write(b []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, fs.ErrClosed
	}
	for i := range b {
		if err := f.disk.stepLocked(); err != nil {
			return i, err
		}
		f.data.octets = append(f.data.octets, b[i])
	}
	f.data.at = f.disk.now
	return len(b), nil
}

// Sync implements [File].
func (f *diskFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.stepLocked(); err != nil {
		return err
	}
	if f.closed {
		return syscall.EBADF
	}
	f.data.safe = bytes.Clone(f.data.octets)
	return nil
}

// Close implements [File].
func (f *diskFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	return f.disk.stepLocked()
}

var (
	_ Folder = (*Disk)(nil)
	_ Folder = Dir("")
)
