// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// FuzzDatagram sends arbitrary bytes, then the good answer, which is accepted unless the bytes were an answer
// themselves.
func FuzzDatagram(f *testing.F) {
	q := upstreamtest.Question(f, "www.example.")
	for _, shape := range upstreamtest.BadShapes() {
		f.Add(shape.Make(q))
	}
	f.Add(upstreamtest.Forged(q))
	f.Add(headerAlone(q))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		if len(datagram) > 4096 {
			return // more than the query allows
		}
		p := newPool(t, upstream.Config{
			Targets: []upstream.Target{target("udp", addrA)},
			Dial: func(_ context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
				if network == "tcp" {
					return nil, net.ErrClosed // a truncated answer then fails
				}
				ours, peer := net.Pipe()
				go func() {
					defer func() { _ = peer.Close() }()
					query := make([]byte, 512)
					for { // possibly again without OPT
						n, err := peer.Read(query)
						if err != nil {
							return
						}
						if id := query[:2]; len(datagram) >= 2 {
							datagram = append(bytes.Clone(id), datagram[2:]...)
						}
						_, _ = peer.Write(datagram)
						_, _ = peer.Write(upstreamtest.Forged(query[:n]))
					}
				}()
				return ours, nil
			},
		})
		r, err := exchange(p, q, 4*time.Second)
		if err != nil {
			if got := outcome(t, r, err); got == "timeout" || got == "malformed" {
				t.Errorf("outcome %q, want the good answer", got)
			}
			return
		}
		var m wire.Message
		if !wire.Answers(q, r) || m.Parse(r) != nil || m.Truncated() {
			t.Errorf("accepted %x", r)
		}
	})
}

// FuzzStream sends arbitrary bytes over TCP and closes. The query ends at once, and finds the answer if a plain
// splitter does.
func FuzzStream(f *testing.F) {
	q := upstreamtest.Question(f, "www.example.")
	copy(q, []byte{1, 1}) // the ID from fixed, which the seeds answer
	frame := func(msg []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...) }
	for _, shape := range upstreamtest.BadShapes() {
		f.Add(append(frame(shape.Make(q)), frame(upstreamtest.Forged(q))...), uint8(3))
	}
	f.Add([]byte{0, 0, 0, 0, 0, 1, 7}, uint8(1))
	f.Add([]byte{0xff, 0xff}, uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		p := newPool(t, upstream.Config{
			Targets: []upstream.Target{target("tcp", addrA)},
			Rand:    fixed{},
			Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
				ours, peer := net.Pipe()
				go func() {
					defer func() { _ = peer.Close() }()
					if _, err := peer.Read(make([]byte, 512)); err != nil {
						return
					}
					for rest := stream; len(rest) > 0; {
						n, err := peer.Write(rest[:min(len(rest), int(step)+1)])
						if err != nil {
							return
						}
						rest = rest[n:]
					}
				}()
				return ours, nil
			},
		})
		run(t, p) // its end closes the connection opened instead of this one
		r, err := exchange(p, q, 4*time.Second)
		if good := upstreamtest.Forged(q); split(stream, good) && !bytes.Equal(r, good) {
			t.Errorf("%x, %v, want the answer among the frames", r, err)
		}
		if err != nil && outcome(t, r, err) == "timeout" {
			t.Error("the query waited, want an end at once")
		}
	})
}

// fixed is a random source that returns only ones.
type fixed struct{}

func (fixed) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}

// split reports whether the answer is the first frame with its ID and question.
func split(stream, answer []byte) bool {
	for len(stream) >= 2 {
		n := int(binary.BigEndian.Uint16(stream))
		if len(stream) < 2+n {
			return false
		}
		frame := stream[2 : 2+n]
		stream = stream[2+n:]
		if bytes.Equal(frame, answer) {
			return true
		}
		if len(frame) >= 12 && bytes.Equal(frame[:2], answer[:2]) {
			return false // it may be the answer as well
		}
	}
	return false
}
