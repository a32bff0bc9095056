// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// authority moves the records of a to the authority section and sets the rcode.
func authority(a *cache.Answer, rcode byte) *cache.Answer {
	a.Msg[3] |= rcode
	copy(a.Msg[8:10], a.Msg[6:8])
	a.Msg[6], a.Msg[7] = 0, 0
	return a
}

// An upstreamAnswer is one answer and its question.
type upstreamAnswer struct {
	at   time.Duration
	what string // "data", "nodata", "nxdomain", "chain": of aliases that ends in NXDOMAIN
	key  []byte
}

// put stores the answer with a lifetime of 10 s.
func (s upstreamAnswer) put(t *testing.T, c *cache.Cache) {
	t.Helper()
	a := plain(s.key, 10*time.Second, 20)
	switch s.what {
	case "data":
	case "nodata":
		authority(a, wire.RcodeSuccess)
	case "nxdomain":
		authority(a, wire.RcodeNXDomain).NXDomain = true
	case "chain":
		a.Msg[3] |= wire.RcodeNXDomain
	default:
		t.Fatalf("%q", s.what)
	}
	c.Put(s.key, a, after(s.at))
}

// meaning returns the kind of msg, as in upstreamAnswer.what.
func meaning(msg []byte) string {
	switch {
	case len(msg) == 0:
		return "nothing"
	case msg[3]&15 == wire.RcodeNXDomain && msg[7] > 0:
		return "chain"
	case msg[3]&15 == wire.RcodeNXDomain:
		return "nxdomain"
	case msg[7] > 0:
		return "data"
	default:
		return "nodata"
	}
}

// Keys of one name.
var (
	keyA, keyAAAA, keyMX = keyOf("www.example.", 1, 0), keyOf("www.example.", 28, 0), keyOf("www.example.", 15, 0)
	keyDO, keySubnet     = keyOf("www.example.", 1, 1), keyOf("www.example.", 1, 0, 0, 1, 8, 0, 10)
	keyBelow, keyAbove   = keyOf("a.www.example.", 1, 0), keyOf("example.", 1, 0)
)

func TestDenials(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type found struct {
		what string
		how  cache.Freshness
	}
	absent := found{"nothing", cache.Absent}
	tests := []struct {
		name  string
		said  []upstreamAnswer
		asked []byte
		at    time.Duration
		want  found
	}{
		{name: "NXDOMAIN is of all types", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "and of its own", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyA, want: found{"nxdomain", cache.Fresh}},
		{name: "with other flags it is another", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyDO, want: absent},
		{name: "with a subnet it is another", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keySubnet, want: absent},
		{name: "of a subnet too", said: []upstreamAnswer{{0, "nxdomain", keySubnet}}, asked: keyA, want: absent},
		{name: "it is not of the names below", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyBelow, want: absent},
		{name: "it is not of the names above", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyAbove, want: absent},
		{name: "NODATA is of a type", said: []upstreamAnswer{{0, "nodata", keyA}}, asked: keyMX, want: absent},
		{name: "a chain to NXDOMAIN is of a type", said: []upstreamAnswer{{0, "chain", keyA}}, asked: keyMX, want: absent},
		{name: "data before NXDOMAIN", said: []upstreamAnswer{{0, "data", keyMX}, {0, "nxdomain", keyA}}, asked: keyMX, want: found{"data", cache.Fresh}},
		{name: "NXDOMAIN in place of data", said: []upstreamAnswer{{0, "data", keyMX}, {0, "nxdomain", keyMX}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "late data behind fresh NXDOMAIN", said: []upstreamAnswer{{0, "data", keyMX}, {5 * s, "nxdomain", keyA}}, asked: keyMX, at: 11 * s, want: found{"nxdomain", cache.Fresh}},
		{name: "late data behind later NXDOMAIN", said: []upstreamAnswer{{0, "data", keyMX}, {5 * s, "nxdomain", keyA}}, asked: keyMX, at: 20 * s, want: found{"nxdomain", cache.Stale}},
		{name: "late NXDOMAIN alone", said: []upstreamAnswer{{0, "nxdomain", keyA}}, asked: keyMX, at: 20 * s, want: found{"nxdomain", cache.Stale}},
		{name: "data take NXDOMAIN away", said: []upstreamAnswer{{0, "nxdomain", keyA}, {0, "data", keyA}}, asked: keyMX, want: absent},
		{name: "data of another type too", said: []upstreamAnswer{{0, "nxdomain", keyA}, {0, "data", keyMX}}, asked: keyA, want: absent},
		{name: "NODATA too", said: []upstreamAnswer{{0, "nxdomain", keyA}, {0, "nodata", keyMX}}, asked: keyA, want: absent},
		{name: "a chain too", said: []upstreamAnswer{{0, "nxdomain", keyA}, {0, "chain", keyMX}}, asked: keyA, want: absent},
		{name: "not for other flags", said: []upstreamAnswer{{0, "nxdomain", keyA}, {0, "data", keyDO}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held: NXDOMAIN is of a type", said: []upstreamAnswer{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: absent},
		{name: "an address held: of that type", said: []upstreamAnswer{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyAAAA, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held: it stays", said: []upstreamAnswer{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyA, want: found{"data", cache.Fresh}},
		{name: "the other address held", said: []upstreamAnswer{{0, "data", keyAAAA}, {0, "nxdomain", keyA}}, asked: keyMX, want: absent},
		{name: "an address held, and asked for something else", said: []upstreamAnswer{{0, "data", keyA}, {0, "nxdomain", keyMX}}, asked: keyAAAA, want: absent},
		{name: "an expired address", said: []upstreamAnswer{{0, "data", keyA}, {10 * s, "nxdomain", keyAAAA}}, asked: keyMX, at: 10 * s, want: found{"nxdomain", cache.Fresh}},
		{name: "no address of the type", said: []upstreamAnswer{{0, "nodata", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "the address itself is denied", said: []upstreamAnswer{{0, "data", keyA}, {0, "nxdomain", keyA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held with other flags", said: []upstreamAnswer{{0, "data", keyDO}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "a question for type 0 is no denial", said: []upstreamAnswer{{0, "data", keyOf("www.example.", 0, 0)}}, asked: keyMX, want: absent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			for _, s := range tt.said {
				s.put(t, c)
			}
			msg, how := c.Lookup(tt.asked, after(tt.at), nil)
			if how == cache.Stale {
				msg, _ = c.LookupStale(tt.asked, after(tt.at), nil)
			}
			same(t, "result", tt.want, found{meaning(msg), how}, cmp.AllowUnexported(found{}))
			n := questionLen(tt.asked)
			if len(msg) > 0 && string(msg[wire.HeaderLen:][:n]) != string(tt.asked[:n]) {
				t.Errorf("the question is %q, want %q", msg[wire.HeaderLen:][:n], tt.asked[:n])
			}
			check(t, c)
		})
	}
}
