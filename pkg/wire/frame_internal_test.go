// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
)

// frameBuffer is the size of the buffer in most tests.
const frameBuffer = 4 << 10

var errShort = errors.New("frame shorter than a DNS header")

// framed returns a frame of size bytes, all of them fill, with its length in front.
func framed(size int, fill byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, uint16(size))
	return append(out, bytes.Repeat([]byte{fill}, size)...)
}

// splitAll is the slow, obvious splitter: it has the whole stream before it.
func splitAll(stream []byte) (messages [][]byte, rest int, err error) {
	for len(stream) >= 2 {
		size := int(stream[0])<<8 | int(stream[1])
		if size < 12 {
			return messages, len(stream), errShort
		}
		if len(stream)-2 < size {
			break
		}
		messages = append(messages, bytes.Clone(stream[2:2+size]))
		stream = stream[2+size:]
	}
	return messages, len(stream), nil
}

// splitInPieces feeds stream to frames in pieces of the given sizes, over and over.
func splitInPieces(t *testing.T, stream []byte, sizes []byte) (messages [][]byte, rest int, err error) {
	t.Helper()
	f := NewFrameReader(frameBuffer)
	for i := 0; len(stream) > 0; i++ {
		room := f.Buffer()
		if len(room) == 0 || len(f.buf) > FrameHeader+MaxMessage {
			t.Fatalf("room of %d bytes in a buffer of %d", len(room), len(f.buf))
		}
		piece := len(stream)
		if len(sizes) > 0 {
			piece = 1 + int(sizes[i%len(sizes)])*int(sizes[i%len(sizes)])
		}
		n := copy(room[:min(len(room), piece)], stream)
		stream = stream[n:]
		f.Advance(n)
		for {
			msg, ok := f.Next(HeaderLen)
			if !ok {
				return messages, f.end - f.start + len(stream), errShort
			}
			if msg == nil {
				break
			}
			messages = append(messages, bytes.Clone(msg))
		}
	}
	if f.Partial() != (f.end > f.start) {
		t.Fatalf("partial is %v with %d bytes left", f.Partial(), f.end-f.start)
	}
	return messages, f.end - f.start, nil
}

func TestFrameReader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		stream []byte
		want   []int // sizes of the messages
		rest   int
		err    error
	}{
		{name: "nothing"},
		{name: "half a length", stream: []byte{0}, rest: 1},
		{name: "a length alone", stream: []byte{0, 12}, rest: 2},
		{name: "smallest", stream: framed(12, 1), want: []int{12}},
		{name: "zero length", stream: []byte{0, 0}, rest: 2, err: errShort},
		{name: "one byte short of a header", stream: framed(11, 1), rest: 13, err: errShort},
		{name: "short after whole", stream: append(framed(12, 1), 0, 5), want: []int{12}, rest: 2, err: errShort},
		{name: "two", stream: append(framed(30, 1), framed(31, 2)...), want: []int{30, 31}},
		{name: "two and a half", stream: append(append(framed(30, 1), framed(31, 2)...), 0, 20, 9), want: []int{30, 31}, rest: 3},
		{name: "fills the buffer", stream: append(framed(frameBuffer-2, 1), framed(12, 2)...), want: []int{frameBuffer - 2, 12}},
		{name: "one more than the buffer", stream: append(framed(frameBuffer-1, 1), framed(12, 2)...), want: []int{frameBuffer - 1, 12}},
		{name: "largest", stream: append(framed(65535, 1), framed(65535, 2)...), want: []int{65535, 65535}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, sizes := range [][]byte{nil, {0}, {1, 7, 0, 60}} {
				messages, rest, err := splitInPieces(t, tt.stream, sizes)
				var got []int
				for _, msg := range messages {
					got = append(got, len(msg))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" || rest != tt.rest || !errors.Is(err, tt.err) {
					t.Errorf("pieces %v: rest %d, want %d; error %v, want %v; messages (-want +got):\n%s", sizes, rest, tt.rest, err, tt.err, diff)
				}
			}
		})
	}
}

// The buffer follows the bytes that came, not the lengths that were claimed, and
// shrinks again.
func TestFrameBuffer(t *testing.T) {
	t.Parallel()
	f := NewFrameReader(frameBuffer)
	feed := func(b []byte) {
		for len(b) > 0 {
			n := copy(f.Buffer(), b)
			f.Advance(n)
			b = b[n:]
		}
	}
	size := func() int { f.Buffer(); return len(f.buf) }

	large := framed(65535, 7)
	feed(large[:2])
	assert.Equal(t, "after a claim of 65535: bytes of buffer", frameBuffer, size())
	feed(large[2:5000])
	assert.Equal(t, "after 5000 bytes: bytes of buffer", 2*frameBuffer, size())
	feed(large[5000:])
	if msg, ok := f.Next(HeaderLen); len(msg) != 65535 || !ok {
		t.Fatalf("got a message of %d bytes, %v", len(msg), ok)
	}
	feed(framed(20, 1)[:10])
	assert.Equal(t, "after the large message: bytes of buffer", frameBuffer, size())
	feed(framed(20, 1)[10:])
	if msg, ok := f.Next(0); !bytes.Equal(msg, framed(20, 1)[2:]) || !ok {
		t.Errorf("after shrinking: message %v, %v", msg, ok)
	}
}

func TestSealFrame(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		size int
		want bool
	}{
		{name: "empty", size: 0, want: false},
		{name: "one byte", size: 1, want: true},
		{name: "largest", size: 65535, want: true},
		{name: "too long", size: 65536, want: false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := []byte("before")
			got, ok := SealFrame(append(OpenFrame(before), make([]byte, tt.size)...), len(before))
			want := before
			if tt.want {
				want = append(bytes.Clone(before), framed(tt.size, 0)...)
			}
			if ok != tt.want || !bytes.Equal(got, want) {
				t.Errorf("got %v and %d bytes, want %v and %d", ok, len(got), tt.want, len(want))
			}
		})
	}
}

func FuzzFrameReader(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add(append(framed(12, 1), framed(40, 2)...), []byte{0})
	f.Add(append(framed(5000, 1), framed(40, 2)...), []byte{3, 9, 61})
	f.Add(append(framed(65535, 1), framed(13, 2)...), []byte{200})
	f.Add(append(framed(30, 1), 0, 11, 1, 2, 3), []byte{2})
	f.Add([]byte{255, 255, 1, 2, 3}, []byte{1})
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		want, wantRest, wantErr := splitAll(stream)
		got, rest, err := splitInPieces(t, stream, sizes)
		if !slices.EqualFunc(want, got, bytes.Equal) {
			t.Errorf("messages (-want +got):\n%s", cmp.Diff(want, got))
		}
		if rest != wantRest || !errors.Is(err, wantErr) {
			t.Errorf("rest %d, want %d; error %v, want %v", rest, wantRest, err, wantErr)
		}
	})
}
