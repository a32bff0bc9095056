// SPDX-License-Identifier: Apache-2.0

package static

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxFile is the octets that are read of a file: more than the longest lists there are.
const maxFile = 32 << 20

// A file is one in the format of hosts(5), and what was read of it last.
type file struct {
	path string
	info os.FileInfo // of the content that was read; nil: none was
	seen os.FileInfo // at the last look; nil: there was none
	text []byte      // the content; nil: none was read
	err  error       // why the last look was in vain
	void bool        // the last look found nothing in it, where there had been something

	moves int  // looks in a row that each found it changed since the one before
	stirs bool // it is one of these now: it is being written, and what is in it is a part

	names, skipped int // of the content
	reads          uint64
}

// look reads the file if it seems to have changed, or in any case, and tells whether
// there is a new content in f.text. One that is gone, or cannot be read, leaves what was
// read before; so does one that is suddenly empty, until it is found so twice, and one
// that is being written, until it rests or was waited for long enough: most writers
// empty a file first.
func (f *file) look(anyway bool) bool {
	f.stirs = false
	info, err := os.Stat(f.path)
	if f.err = err; err != nil {
		return false
	}
	if !anyway && !f.void && isSame(info, f.info) {
		return false
	}
	if f.info != nil && !isSame(info, f.seen) && !isSame(info, f.info) && f.moves < maxMoves {
		f.seen, f.stirs = info, true
		f.moves++
		return false
	}
	f.seen, f.moves = info, 0
	text, err := filewatch.ReadFile(f.path, maxFile)
	if f.err = err; err != nil {
		return false
	}
	if len(text) == 0 && len(f.text) > 0 && !f.void {
		f.void = true
		return false
	}
	f.void, f.info = false, info
	if f.text != nil && bytes.Equal(text, f.text) {
		return false
	}
	f.text = text
	return true
}

// isSame tells whether a file seems to be as it was.
func isSame(info, was os.FileInfo) bool {
	return was != nil && os.SameFile(info, was) && info.ModTime().Equal(was.ModTime()) && info.Size() == was.Size()
}

// parse adds the names of a text in the format of hosts(5). It returns how many there
// were, and how many lines could not be used.
func (b *builder) parse(text []byte) (names, skipped int) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile+1)
	for lines.Scan() {
		line, _, _ := bytes.Cut(lines.Bytes(), []byte{'#'})
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(string(fields[0]))
		good := err == nil && len(fields) > 1
		for _, name := range fields[1:] {
			if err == nil && b.add(string(name), addr) {
				names++
			} else {
				good = false
			}
		}
		if !good {
			skipped++
		}
	}
	return names, skipped
}
