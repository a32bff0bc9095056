// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TuDoor (CVE-2023-28452): a bad datagram does not end the wait for the answer.
func TestUDPBadDatagramFirst(t *testing.T) {
	t.Parallel()
	for _, shape := range upstreamtest.BadShapes() {
		t.Run(shape.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(func(upstreamtest.Query) upstreamtest.Action {
					return upstreamtest.Action{Raw: []upstreamtest.Raw{shape.Make, func(q []byte) []byte {
						time.Sleep(150 * time.Millisecond)
						return upstreamtest.Forged(q)
					}}}
				})
				p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
				want := "mismatch=1"
				if shape.Reads {
					want = "malformed=1"
				}
				start := time.Now()
				if got := ask(t, p); got != "192.0.2.66" {
					t.Errorf("answer %q, want the good one, 192.0.2.66", got)
				}
				if got := time.Since(start); got != 150*time.Millisecond {
					t.Errorf("it took %v, want 150ms", got)
				}
				if got := failures(p); got != want {
					t.Errorf("failures %q, want %q", got, want)
				}
				if got := p.Stats().Servers[0]; got.Requests != 1 || got.SRTT != 150*time.Millisecond {
					t.Errorf("%d requests and srtt %v, want one and no penalty on 150ms", got.Requests, got.SRTT)
				}
			})
		})
	}
}

func TestTruncatedGoesToTCP(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		udp  upstreamtest.Action
	}{
		{name: "empty with TC", udp: upstreamtest.Action{Truncate: true}},
		{name: "truncated within a record, with TC", udp: upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
			r := upstreamtest.Forged(q)
			r[2] |= 2
			return r[:len(r)-3]
		}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.By(upstreamtest.Always(tt.udp), upstreamtest.Always(one("192.0.2.10"))))
				p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
				if got := ask(t, p); got != "192.0.2.10" {
					t.Errorf("answer %q, want 192.0.2.10", got)
				}
				var networks []string
				for _, q := range s.Queries() {
					networks = append(networks, q.Network)
				}
				if diff := cmp.Diff([]string{"udp", "tcp"}, networks); diff != "" {
					t.Errorf("queries (-want +got):\n%s", diff)
				}
				got := p.Stats().Servers[0]
				if got.Requests != 1 || got.Truncated != 1 || got.Opened != 1 {
					t.Errorf("requests %d truncated %d opened %d, want one request", got.Requests, got.Truncated, got.Opened)
				}
			})
		})
	}
}

// The answer has the caller's ID and no trailing bytes.
func TestExchangeAnswer(t *testing.T) {
	t.Parallel()
	s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		return append(upstreamtest.Forged(q), "trailing"...)
	}}}))
	p := newPool(t, upstream.Config{Targets: []upstream.Target{target("udp", s.Listen(t))}, NoRandomCase: true})
	q := upstreamtest.Question(t, "www.example.")
	q[0], q[1] = 0xab, 0xcd
	sent := string(q)
	got, err := exchange(p, q, 10*time.Second)
	if want := upstreamtest.Forged(q); err != nil || !bytes.Equal(got, want) {
		t.Errorf("answer %q, error %v, want %q", got, err, want)
	}
	if string(q) != sent {
		t.Error("the query was changed")
	}
	if _, err := exchange(p, q[:5], time.Second); err == nil {
		t.Error("a truncated query is asked, want an error")
	}
}
