// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"time"
)

// leftOver is how old a file of another writer is before it is taken for what a killed one has left behind. No writer
// that lives takes as long.
const leftOver = time.Minute

// written is how much is handed to the file system at a time.
const written = 64 << 10

var errFull = errors.New("it grew past snapshot.size")

// A Job is a snapshot to be made.
type Job struct {
	Folder Folder
	Writer string // tells this writer of the folder from others: letters and digits
	At     Moment
	Most   int64                 // octets that the file may have
	Fill   func(w *Writer) error // writes the sections
}

// Save makes the snapshot and gives its size in octets. After an error the one before is still there, if there was one,
// unless it was only the folder that could not be synced: then it is one of the two. The error is an [*Error].
func Save(ctx context.Context, j Job) (int64, error) {
	if err := j.Folder.Make(); err != nil {
		return 0, saving(j.Folder, err)
	}
	j.sweep()
	name := temporary + j.Writer
	n, err := j.write(ctx, name)
	if err == nil {
		err = j.Folder.Rename(name, Name)
	}
	if err != nil {
		_ = j.Folder.Remove(name) // if it fails, too, the next one tries again
		return 0, saving(j.Folder, err)
	}
	if err := j.Folder.Sync(); err != nil {
		return 0, saving(j.Folder, err)
	}
	return n, nil
}

// sweep removes what killed writers have left behind, and what this one has.
func (j *Job) sweep() {
	files, err := j.Folder.List()
	if err != nil {
		return // whatever is wrong, writing will tell
	}
	for name, at := range files {
		if writer, ok := strings.CutPrefix(name, temporary); ok && (writer == j.Writer || j.At.Wall.Sub(at) > leftOver) {
			_ = j.Folder.Remove(name)
		}
	}
}

// write writes the file under the name, and sees it synced.
func (j *Job) write(ctx context.Context, name string) (size int64, err error) {
	f, err := j.Folder.Create(name)
	if err != nil {
		return 0, err
	}
	w := &Writer{ctx: ctx, out: bufio.NewWriterSize(f, written), most: j.Most}
	w.write(appendHead(nil, j.At))
	if err = j.Fill(w); err == nil {
		err = w.finish()
	}
	if err == nil {
		err = f.Sync()
	}
	return w.size, errors.Join(err, f.Close())
}

// A Writer takes a snapshot's records. Its first error stays and is given by whatever is called then.
type Writer struct {
	ctx     context.Context //nolint:containedctx // of the one call of Save that the writer lives for
	out     *bufio.Writer
	most    int64
	size    int64  // octets written
	sum     uint32 // of them
	section uint32 // of those of the section under way
	entries []entry
	length  [binary.MaxVarintLen64]byte
	err     error
}

// Section ends the section under way and begins another.
func (w *Writer) Section(k Kind, version uint16) {
	w.seal()
	w.entries = append(w.entries, entry{kind: k, version: version})
	w.section = 0
}

// seal completes the entry of the section under way.
func (w *Writer) seal() {
	if n := len(w.entries); n > 0 {
		w.entries[n-1].sum = w.section
	}
}

// Framed is the octets that a record takes.
func Framed(record int) int64 {
	n := int64(record) + 1
	for rest := record >> 7; rest > 0; rest >>= 7 {
		n++
	}
	return n
}

// Left is how many octets records may still take, if there is to be no further section.
func (w *Writer) Left() int64 {
	return max(0, w.most-w.size-int64(len(w.entries))*entryLen-tailLen)
}

// Record writes a record of the section under way. It fails once the context has ended or the snapshot would be larger
// than it may be.
func (w *Writer) Record(b []byte) error {
	if w.err == nil && Framed(len(b)) > w.Left() {
		w.err = errFull
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err != nil {
		return w.err
	}
	head := w.length[:binary.PutUvarint(w.length[:], uint64(len(b)))]
	w.inSection(head)
	w.inSection(b)
	return w.err
}

func (w *Writer) inSection(b []byte) {
	w.section = crc32.Update(w.section, castagnoli(), b)
	w.entries[len(w.entries)-1].length += uint64(len(b))
	w.write(b)
}

func (w *Writer) write(b []byte) {
	if w.err != nil {
		return
	}
	w.sum = crc32.Update(w.sum, castagnoli(), b)
	w.size += int64(len(b))
	_, w.err = w.out.Write(b)
}

// finish writes table and tail.
func (w *Writer) finish() error {
	w.seal()
	for i := range w.entries {
		w.write(w.entries[i].append(nil))
	}
	w.write(appendTail(nil, len(w.entries), w.sum, w.size))
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}
