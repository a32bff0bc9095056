// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"slices"
	"testing"
)

// Frames come out as they went in, wherever the reads cut them.
func TestFrameBuffer(t *testing.T) {
	t.Parallel()
	var stream []byte
	var want [][]byte
	for i, n := range []int{0, 1, 12, 500, 65535, 3, 16384, 16382, 0, 0, 65535, 65534, 40} {
		frame := bytes.Repeat([]byte{byte(i + 1)}, n)
		want = append(want, frame)
		stream = append(binary.BigEndian.AppendUint16(stream, uint16(n)), frame...)
	}
	for _, piece := range []int{1, 2, 3, 511, 16384, 1 << 20} {
		in := newFrameBuffer()
		var got [][]byte
		for rest := stream; len(rest) > 0; {
			n := copy(in.space(), rest[:min(piece, len(rest))])
			in.filled(n)
			rest = rest[n:]
			for frame := in.next(); frame != nil; frame = in.next() {
				got = append(got, bytes.Clone(frame))
			}
		}
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("in pieces of %d: %d frames, want %d as they were", piece, len(got), len(want))
		}
		if in.space(); cap(in.buf) != readBufferSize {
			t.Errorf("in pieces of %d: %d octets are kept, want %d", piece, cap(in.buf), readBufferSize)
		}
	}
}

// The IDs of a connection are random, never given twice at a time, and found again.
func TestIDTable(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]io.Reader{"random": rand.Reader, "always the same": zeros{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var q idTable
			ids := idSource{random: source}
			in := map[uint16]*attempt{}
			for round := range 5000 {
				if len(in) < maxInflight && round%5 != 4 {
					added := new(attempt)
					if err := q.add(added, &ids); err != nil {
						t.Fatal(err)
					}
					if in[added.pending.id] != nil {
						t.Fatalf("ID %d is given twice", added.pending.id)
					}
					in[added.pending.id] = added
					continue
				}
				for id, gone := range in {
					q.remove(gone)
					delete(in, id)
					break
				}
			}
			for id := range 1 << 16 {
				if got := q.lookup(uint16(id)); got != in[uint16(id)] {
					t.Fatalf("ID %d finds %p, want %p", id, got, in[uint16(id)])
				}
			}
			if q.n != len(in) || len(q.slots) > 4*maxInflight {
				t.Errorf("%d in %d slots, want %d", q.n, len(q.slots), len(in))
			}
		})
	}
}

// zeros is a source of nothing else.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
