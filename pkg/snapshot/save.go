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

// leftoverAge is the age at which another writer's temporary file counts as abandoned. A running
// writer never takes that long.
const leftoverAge = time.Minute

// writeBufferSize is the number of bytes passed to one write call.
const writeBufferSize = 64 << 10

var errFull = errors.New("larger than snapshot.size")

// A Job describes one snapshot to save.
type Job struct {
	Folder  Folder
	Writer  string // identifies this writer of the folder: letters and digits
	At      ClockState
	MaxSize int64                 // bytes
	Fill    func(w *Writer) error // writes the sections
}

// Save writes the snapshot and returns its size in bytes. After an error the previous snapshot is
// still in place; if only the sync of the folder failed, it is the previous or the new one. The error
// is a [hint.Error]; it has a hint where the operator can do something.
func Save(ctx context.Context, j Job) (int64, error) {
	if err := j.Folder.Make(); err != nil {
		return 0, saveError(j.Folder, err)
	}
	j.removeLeftovers()
	name := tempPrefix + j.Writer
	n, err := j.write(ctx, name)
	if err == nil {
		err = j.Folder.Rename(name, Name)
	}
	if err != nil {
		_ = j.Folder.Remove(name) // if this fails too, the next Save removes it
		return 0, saveError(j.Folder, err)
	}
	if err := j.Folder.Sync(); err != nil {
		return 0, saveError(j.Folder, err)
	}
	return n, nil
}

// removeLeftovers removes the temporary files that killed writers and earlier saves of this writer have left.
func (j *Job) removeLeftovers() {
	files, err := j.Folder.List()
	if err != nil {
		return // the write reports the same problem
	}
	for name, at := range files {
		if writer, ok := strings.CutPrefix(name, tempPrefix); ok && (writer == j.Writer || j.At.Wall.Sub(at) > leftoverAge) {
			_ = j.Folder.Remove(name)
		}
	}
}

// write writes and syncs the file.
func (j *Job) write(ctx context.Context, name string) (size int64, err error) {
	f, err := j.Folder.Create(name)
	if err != nil {
		return 0, err
	}
	w := &Writer{ctx: ctx, out: bufio.NewWriterSize(f, writeBufferSize), maxSize: j.MaxSize}
	w.write(appendHead(nil, j.At))
	if err = j.Fill(w); err == nil {
		err = w.finish()
	}
	if err == nil {
		err = f.Sync()
	}
	return w.size, errors.Join(err, f.Close())
}

// A Writer takes a snapshot's records. After its first error every call returns that error.
type Writer struct {
	ctx     context.Context //nolint:containedctx // a writer lives for one call of Save
	out     *bufio.Writer
	maxSize int64
	size    int64  // bytes written
	sum     uint32 // CRC-32C of all bytes written
	entries []entry
	length  [binary.MaxVarintLen64]byte
	err     error
}

// Section ends the current section and begins a new one.
func (w *Writer) Section(k Kind, version uint16) {
	w.entries = append(w.entries, entry{Kind: k, Version: version})
}

// FramedSize returns the bytes that a record takes, its length prefix included.
func FramedSize(record int) int64 {
	var length [binary.MaxVarintLen64]byte
	return int64(binary.PutUvarint(length[:], uint64(record)) + record)
}

// Remaining returns the bytes that are left for records, if no section follows.
func (w *Writer) Remaining() int64 {
	return max(0, w.maxSize-w.size-int64(len(w.entries))*entryLen-tailLen)
}

// Record appends a record to the current section. It fails if the context has ended or the snapshot
// would exceed its maximum size.
func (w *Writer) Record(b []byte) error {
	if w.err == nil && FramedSize(len(b)) > w.Remaining() {
		w.err = errFull
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err != nil {
		return w.err
	}
	length := w.length[:binary.PutUvarint(w.length[:], uint64(len(b)))]
	w.writeInSection(length)
	w.writeInSection(b)
	return w.err
}

func (w *Writer) writeInSection(b []byte) {
	current := &w.entries[len(w.entries)-1]
	current.Sum = crc32.Update(current.Sum, castagnoli(), b)
	current.Length += uint64(len(b))
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

// finish writes the table and the tail.
func (w *Writer) finish() error {
	table, _ := binary.Append(nil, binary.LittleEndian, w.entries) // cannot fail: all sizes are fixed
	w.write(table)
	w.write(appendTail(nil, len(w.entries), w.sum, w.size))
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}
