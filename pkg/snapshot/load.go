// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
)

var (
	errForeign = errors.New("it is no snapshot of node-cache")
	errCut     = errors.New("it is cut short")
	errDamaged = errors.New("it is damaged: a checksum is wrong")
	errOdd     = errors.New("it is damaged, though its checksums are right")
)

// A Snapshot is a file that was found whole.
type Snapshot struct {
	folder   Folder
	at       Moment
	sections []section
}

type section struct {
	entry
	octets []byte
}

// Load reads the snapshot, which stands in memory then. One of more than most octets is refused: it may be of a time when
// there was more memory, and a process that ends in reading it would do so at each start. The error is an [*Error], and
// errors.Is(err, fs.ErrNotExist) if there is none. Nothing in the file can make it panic.
func Load(f Folder, most int64) (*Snapshot, error) {
	octets, err := read(f, most)
	if err != nil {
		return nil, refusing(f, err)
	}
	s := &Snapshot{folder: f}
	if err := s.parse(octets); err != nil {
		return nil, refusing(f, err)
	}
	return s, nil
}

// read gives the whole file. What cannot be a snapshot, or is too large, is not read to its end.
func read(f Folder, most int64) (octets []byte, err error) {
	r, size, err := f.Open(Name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	head := make([]byte, min(size, headLen))
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	if err := checkHead(head); err != nil {
		return nil, err
	}
	if size > most {
		return nil, fmt.Errorf("it has %d octets, which is more than snapshot.size, %d", size, most)
	}
	octets = make([]byte, size)
	copy(octets, head)
	if _, err := io.ReadFull(r, octets[headLen:]); err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	return octets, nil
}

// checkHead says what of this version the head is not. All that it has is read: a file may be shorter than a head.
func checkHead(head []byte) error {
	if string(head[:min(len(head), len(magic))]) != magic[:min(len(head), len(magic))] {
		return errForeign
	}
	if len(head) < headLen {
		return errCut
	}
	switch v := binary.LittleEndian.Uint32(head[len(magic):]); {
	case v > version:
		return fmt.Errorf("it has version %d, of a newer node-cache: this one reads version %d", v, version)
	case v < version:
		return errDamaged // there was none before 1
	}
	return nil
}

// parse reads a file whose head is right as far as it can be told from itself.
func (s *Snapshot) parse(octets []byte) error {
	if len(octets) < headLen+tailLen {
		return errCut
	}
	body, tail := octets[:len(octets)-tailLen], octets[len(octets)-tailLen:]
	if string(tail[16:16+len(cigam)]) != cigam {
		return errCut
	}
	if binary.LittleEndian.Uint32(tail[24:]) != checksum(tail[:24]) {
		return errDamaged
	}
	if binary.LittleEndian.Uint64(tail[8:]) != uint64(len(octets)) {
		return errCut
	}
	whole := binary.LittleEndian.Uint32(tail[4:]) == checksum(body)
	if err := s.parseTable(body, int64(binary.LittleEndian.Uint32(tail))); err != nil {
		if !whole {
			return errDamaged
		}
		return err
	}
	if !whole {
		return s.damage()
	}
	s.at = readHead(octets)
	if binary.LittleEndian.Uint32(octets[12:]) != 0 {
		return errOdd
	}
	for i := range s.sections {
		if err := s.sections[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// parseTable finds the sections, of which there are n.
func (s *Snapshot) parseTable(body []byte, n int64) error {
	rest := body[headLen:]
	if n*entryLen > int64(len(rest)) {
		return errOdd
	}
	table := rest[int64(len(rest))-n*entryLen:]
	rest = rest[:len(rest)-len(table)]
	for ; len(table) > 0; table = table[entryLen:] {
		e := readEntry(table)
		if e.length > uint64(len(rest)) {
			return errOdd
		}
		s.sections = append(s.sections, section{e, rest[:e.length]})
		rest = rest[e.length:]
	}
	if len(rest) > 0 {
		return errOdd
	}
	return nil
}

// damage says where the damage is.
func (s *Snapshot) damage() error {
	for i := range s.sections {
		if sec := &s.sections[i]; checksum(sec.octets) != sec.sum {
			return fmt.Errorf("section %q: %w", sec.kind, errDamaged)
		}
	}
	return errDamaged
}

// check looks whether a section's records fill it.
func (s *section) check() error {
	if checksum(s.octets) != s.sum {
		return fmt.Errorf("section %q: %w", s.kind, errDamaged)
	}
	for rest := s.octets; len(rest) > 0; {
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return fmt.Errorf("section %q: %w", s.kind, errOdd)
		}
		rest = rest[n+int(length):]
	}
	return nil
}

// Age is how long ago the snapshot was made. The error, an [*Error], says that it is more than most, or was not yet.
func (s *Snapshot) Age(now Moment, most time.Duration) (time.Duration, error) {
	age, err := now.since(s.at)
	if err == nil && age > most {
		err = fmt.Errorf("it is %s old, which is more than snapshot.maxAge, %s", age.Round(time.Second), most)
	}
	if err != nil {
		return 0, refusing(s.folder, err)
	}
	return age, nil
}

// Has tells whether there is a section of the kind.
func (s *Snapshot) Has(k Kind) bool {
	for i := range s.sections {
		if s.sections[i].kind == k {
			return true
		}
	}
	return false
}

// Version gives an error, an [*Error], for a section of the kind whose version is not the one that the caller reads.
func (s *Snapshot) Version(k Kind, reads uint16) error {
	for i := range s.sections {
		if sec := &s.sections[i]; sec.kind == k && sec.version != reads {
			return refusing(s.folder, fmt.Errorf("its section %q has version %d: this node-cache reads version %d", k, sec.version, reads))
		}
	}
	return nil
}

// Refuse makes an [*Error] of what is wrong with a record.
func (s *Snapshot) Refuse(k Kind, err error) error {
	return refusing(s.folder, fmt.Errorf("section %q: %w", k, err))
}

// Records gives the records of the sections of the kind. They are valid as long as the snapshot.
func (s *Snapshot) Records(k Kind) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range s.sections {
			if s.sections[i].kind != k {
				continue
			}
			for rest := s.sections[i].octets; len(rest) > 0; {
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
