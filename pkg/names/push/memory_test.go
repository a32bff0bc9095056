// SPDX-License-Identifier: Apache-2.0

//go:build !race

package push_test

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/push"
)

// Subscriptions of sessions with 300 each, a third of them to names of no other session, are estimated well, and take less than 180
// bytes each: with SOAK for 3,333 sessions.
func TestMemory(t *testing.T) { // not parallel: it measures the heap
	count := 300
	if os.Getenv("SOAK") != "" {
		count = 3333
	}
	h := newHarness(t)
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	names := make([][]byte, 300)
	sessions := make([]*push.Session, 0, count)
	for s := range count {
		session := h.NewSession(netip.AddrFrom4([4]byte{10, 0, byte(s >> 8), byte(s)}), discard{})
		for i := range names {
			number := (s*7 + i*37) % 11000
			names[i] = fmt.Appendf(names[i][:0], "\x0dservice-%05d\x07team-%02d\x03svc\x07cluster\x05local\x00", number, number%100)
			if i%3 == 0 {
				names[i] = fmt.Appendf(names[i][:0], "\x0downed-%02d-%04d\x07team-%02d\x03svc\x07cluster\x05local\x00", i%100, s, i%100)
			}
			session.Handle(dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, uint16(i+1), 0), dso.Subscription{Name: names[i], Type: 255, Class: 1}))
		}
		sessions = append(sessions, session)
	}
	used, st := live()-before, h.Stats()
	t.Logf("%d subscriptions of %d sessions to %d names: %d MiB, estimated %d MiB: %d bytes a subscription", st.Subscriptions, st.Sessions, st.Names, used>>20, st.Bytes>>20, used/int64(st.Subscriptions))
	if st.Subscriptions != 300*count || used > 180*int64(st.Subscriptions) || st.Bytes < used*9/10 || st.Bytes > used*3/2 {
		t.Errorf("%d subscriptions take %d bytes, estimated %d", st.Subscriptions, used, st.Bytes)
	}
	runtime.KeepAlive(sessions)
}
