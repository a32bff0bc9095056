// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
)

var (
	errNotSnapshot = errors.New("not a node-cache snapshot")
	errTruncated   = errors.New("truncated")
	errDamaged     = errors.New("corrupt: checksum mismatch")
	errMalformed   = errors.New("corrupt: malformed, though the checksums match")
)

// A Snapshot is a verified file, in memory.
type Snapshot struct {
	folder   Folder
	madeAt   ClockState
	sections []section
}

type section struct {
	entry
	data []byte
}

// Load reads the snapshot into memory. It refuses a file larger than maxSize bytes: the file may date
// from a time with a higher memory limit, and a process killed while reading it would be killed at
// every start. The error has a hint; errors.Is(err, fs.ErrNotExist) reports that there is no
// snapshot. No file content makes Load panic.
func Load(f Folder, maxSize int64) (*Snapshot, error) {
	data, err := read(f, maxSize)
	if err != nil {
		return nil, loadError(f, err)
	}
	s := &Snapshot{folder: f}
	if err := s.parse(data); err != nil {
		return nil, loadError(f, err)
	}
	return s, nil
}

// read returns the whole file. It stops early if the head is not one of a snapshot or the file is too
// large.
func read(f Folder, maxSize int64) (data []byte, err error) {
	r, size, err := f.Open(Name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	head := make([]byte, min(size, headLen))
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if err := checkHead(head); err != nil {
		return nil, err
	}
	if size > maxSize {
		return nil, fmt.Errorf("size %d bytes exceeds snapshot.size, %d", size, maxSize)
	}
	data = make([]byte, size)
	copy(data, head)
	if _, err := io.ReadFull(r, data[headLen:]); err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	return data, nil
}

// checkHead verifies a head of this version. A short file may have only a part of a head.
func checkHead(head []byte) error {
	if string(head[:min(len(head), len(magic))]) != magic[:min(len(head), len(magic))] {
		return errNotSnapshot
	}
	if len(head) < headLen {
		return errTruncated
	}
	switch v := binary.LittleEndian.Uint32(head[len(magic):]); {
	case v > version:
		return fmt.Errorf("version %d is from a newer node-cache: this one reads version %d", v, version)
	case v < version:
		return errDamaged // there was no version before 1
	}
	return nil
}

// parse reads a file whose head is valid and verifies it against its own checksums.
func (s *Snapshot) parse(data []byte) error {
	if len(data) < headLen+tailLen {
		return errTruncated
	}
	body, tail := data[:len(data)-tailLen], data[len(data)-tailLen:]
	if string(tail[16:16+len(trailerMagic)]) != trailerMagic {
		return errTruncated
	}
	if binary.LittleEndian.Uint32(tail[24:]) != checksum(tail[:24]) {
		return errDamaged
	}
	if binary.LittleEndian.Uint64(tail[8:]) != uint64(len(data)) {
		return errTruncated
	}
	s.madeAt = readHead(data)
	err := s.parseTable(body, int64(binary.LittleEndian.Uint32(tail)))
	for i := 0; err == nil && i < len(s.sections); i++ {
		err = s.sections[i].check()
	}
	switch {
	case errors.Is(err, errDamaged): // the error names the section
		return err
	case binary.LittleEndian.Uint32(tail[4:]) != checksum(body):
		return errDamaged
	case err == nil && binary.LittleEndian.Uint32(data[12:]) != 0:
		return errMalformed
	}
	return err
}

// parseTable reads the table of n sections.
func (s *Snapshot) parseTable(body []byte, n int64) error {
	rest := body[headLen:]
	if n*entryLen > int64(len(rest)) {
		return errMalformed
	}
	table := rest[int64(len(rest))-n*entryLen:]
	rest = rest[:len(rest)-len(table)]
	for ; len(table) > 0; table = table[entryLen:] {
		var e entry
		if _, err := binary.Decode(table, binary.LittleEndian, &e); err != nil || e.Length > uint64(len(rest)) {
			return errMalformed
		}
		s.sections = append(s.sections, section{e, rest[:e.Length]})
		rest = rest[e.Length:]
	}
	if len(rest) > 0 {
		return errMalformed
	}
	return nil
}

// check verifies the section's checksum and that records fill it exactly.
func (s *section) check() error {
	if checksum(s.data) != s.Sum {
		return fmt.Errorf("section %q: %w", s.Kind, errDamaged)
	}
	for rest := s.data; len(rest) > 0; {
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return fmt.Errorf("section %q: %w", s.Kind, errMalformed)
		}
		rest = rest[n+int(length):]
	}
	return nil
}

// Age returns the time since the snapshot was made. It returns an error if that is more than maxAge
// or negative.
func (s *Snapshot) Age(now ClockState, maxAge time.Duration) (time.Duration, error) {
	age, err := now.since(s.madeAt)
	if err == nil && age > maxAge {
		err = fmt.Errorf("age %s exceeds snapshot.maxAge, %s", age.Round(time.Second), maxAge)
	}
	if err != nil {
		return 0, loadError(s.folder, err)
	}
	return age, nil
}

// Has reports whether there is a section of the kind.
func (s *Snapshot) Has(k Kind) bool {
	return slices.ContainsFunc(s.sections, func(sec section) bool { return sec.Kind == k })
}

// CheckVersion returns an error if a section of the kind has a version other than want.
func (s *Snapshot) CheckVersion(k Kind, want uint16) error {
	for i := range s.sections {
		if sec := &s.sections[i]; sec.Kind == k && sec.Version != want {
			return loadError(s.folder, fmt.Errorf("section %q has version %d: this node-cache reads version %d", k, sec.Version, want))
		}
	}
	return nil
}

// RecordError returns an error for an invalid record in a section of the kind.
func (s *Snapshot) RecordError(k Kind, err error) error {
	return loadError(s.folder, fmt.Errorf("section %q: %w", k, err))
}

// Records iterates over the records of all sections of the kind. They are valid as long as the snapshot.
func (s *Snapshot) Records(k Kind) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range s.sections {
			if s.sections[i].Kind != k {
				continue
			}
			for rest := s.sections[i].data; len(rest) > 0; {
				length, n := binary.Uvarint(rest)
				record := rest[n : n+int(length) : n+int(length)]
				if !yield(record) {
					return
				}
				rest = rest[n+int(length):]
			}
		}
	}
}
