// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// authority makes the records of a authority, and its rcode another.
func authority(a *cache.Answer, rcode byte) *cache.Answer {
	a.Msg[3] |= rcode
	copy(a.Msg[8:10], a.Msg[6:8])
	a.Msg[6], a.Msg[7] = 0, 0
	return a
}

// A said is one answer and what it is an answer to.
type said struct {
	at   time.Duration
	what string // "data", "nodata", "nxdomain", "chain": of aliases that ends in NXDOMAIN
	key  []byte
}

// tell puts what upstream said, with a life of 10 s.
func (s said) tell(t *testing.T, c *cache.Cache) {
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

// meaning is what msg says, in the words of said.
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
		said  []said
		asked []byte
		at    time.Duration
		want  found
	}{
		{name: "NXDOMAIN is of all types", said: []said{{0, "nxdomain", keyA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "and of its own", said: []said{{0, "nxdomain", keyA}}, asked: keyA, want: found{"nxdomain", cache.Fresh}},
		{name: "with other flags it is another", said: []said{{0, "nxdomain", keyA}}, asked: keyDO, want: absent},
		{name: "with a subnet it is another", said: []said{{0, "nxdomain", keyA}}, asked: keySubnet, want: absent},
		{name: "of a subnet too", said: []said{{0, "nxdomain", keySubnet}}, asked: keyA, want: absent},
		{name: "it is not of the names below", said: []said{{0, "nxdomain", keyA}}, asked: keyBelow, want: absent},
		{name: "it is not of the names above", said: []said{{0, "nxdomain", keyA}}, asked: keyAbove, want: absent},
		{name: "NODATA is of a type", said: []said{{0, "nodata", keyA}}, asked: keyMX, want: absent},
		{name: "a chain to NXDOMAIN is of a type", said: []said{{0, "chain", keyA}}, asked: keyMX, want: absent},
		{name: "data before NXDOMAIN", said: []said{{0, "data", keyMX}, {0, "nxdomain", keyA}}, asked: keyMX, want: found{"data", cache.Fresh}},
		{name: "NXDOMAIN in place of data", said: []said{{0, "data", keyMX}, {0, "nxdomain", keyMX}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "late data behind fresh NXDOMAIN", said: []said{{0, "data", keyMX}, {5 * s, "nxdomain", keyA}}, asked: keyMX, at: 11 * s, want: found{"nxdomain", cache.Fresh}},
		{name: "late data behind later NXDOMAIN", said: []said{{0, "data", keyMX}, {5 * s, "nxdomain", keyA}}, asked: keyMX, at: 20 * s, want: found{"nxdomain", cache.Late}},
		{name: "late NXDOMAIN alone", said: []said{{0, "nxdomain", keyA}}, asked: keyMX, at: 20 * s, want: found{"nxdomain", cache.Late}},
		{name: "data take NXDOMAIN away", said: []said{{0, "nxdomain", keyA}, {0, "data", keyA}}, asked: keyMX, want: absent},
		{name: "data of another type too", said: []said{{0, "nxdomain", keyA}, {0, "data", keyMX}}, asked: keyA, want: absent},
		{name: "NODATA too", said: []said{{0, "nxdomain", keyA}, {0, "nodata", keyMX}}, asked: keyA, want: absent},
		{name: "a chain too", said: []said{{0, "nxdomain", keyA}, {0, "chain", keyMX}}, asked: keyA, want: absent},
		{name: "not for other flags", said: []said{{0, "nxdomain", keyA}, {0, "data", keyDO}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held: NXDOMAIN is of a type", said: []said{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: absent},
		{name: "an address held: of that type", said: []said{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyAAAA, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held: it stays", said: []said{{0, "data", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyA, want: found{"data", cache.Fresh}},
		{name: "the other address held", said: []said{{0, "data", keyAAAA}, {0, "nxdomain", keyA}}, asked: keyMX, want: absent},
		{name: "an address held, and asked for something else", said: []said{{0, "data", keyA}, {0, "nxdomain", keyMX}}, asked: keyAAAA, want: absent},
		{name: "an address past its time", said: []said{{0, "data", keyA}, {10 * s, "nxdomain", keyAAAA}}, asked: keyMX, at: 10 * s, want: found{"nxdomain", cache.Fresh}},
		{name: "no address of the type", said: []said{{0, "nodata", keyA}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "the address itself is denied", said: []said{{0, "data", keyA}, {0, "nxdomain", keyA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "an address held with other flags", said: []said{{0, "data", keyDO}, {0, "nxdomain", keyAAAA}}, asked: keyMX, want: found{"nxdomain", cache.Fresh}},
		{name: "a question for type 0 is no denial", said: []said{{0, "data", keyOf("www.example.", 0, 0)}}, asked: keyMX, want: absent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			for _, s := range tt.said {
				s.tell(t, c)
			}
			msg, how := c.Lookup(tt.asked, after(tt.at), nil)
			if how == cache.Late {
				msg, _ = c.LookupStale(tt.asked, after(tt.at), nil)
			}
			if diff := cmp.Diff(tt.want, found{meaning(msg), how}, cmp.AllowUnexported(found{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			n := questionLen(tt.asked)
			if len(msg) > 0 && string(msg[wire.HeaderLen:][:n]) != string(tt.asked[:n]) {
				t.Errorf("the question is %q, want %q", msg[wire.HeaderLen:][:n], tt.asked[:n])
			}
			check(t, c)
		})
	}
}

// TestDenialFailures has failures come behind a denial of the name.
func TestDenialFailures(t *testing.T) {
	t.Parallel()
	const s = time.Second
	c := newStale(t, hourly)
	said{0, "nxdomain", keyA}.tell(t, c)
	fail(c, keyMX, after(5*s)) // of a flight that began before
	fail(c, keyMX, after(20*s))
	if got := freshness(c, keyMX, after(22*s-1)); got != cache.Resting {
		t.Errorf("late denial after its second failure: %d, want resting", got)
	}
	if got := freshness(c, keyAAAA, after(22*s-1)); got != cache.Resting {
		t.Errorf("for another type: %d, want resting", got)
	}
	c.Rest(keyAAAA, after(30*s), after(22*s))
	if got := freshness(c, keyMX, after(29*s)); got != cache.Resting {
		t.Errorf("put to rest: %d, want resting", got)
	}
	fail(c, keyDO, after(20*s))
	if got := freshness(c, keyDO, after(20*s)); got != cache.Failed {
		t.Errorf("with other flags: %d, want failed", got)
	}
	none := keyOf("none.example.", 0, 0)
	fail(c, none, epoch)
	if got := freshness(c, none, epoch); got != cache.Absent {
		t.Errorf("failure of type 0: %d, want absent", got)
	}
	// A remembered failure does not hide what another type's question finds out.
	other := keyOf("other.example.", 1, 0)
	fail(c, other, epoch)
	said{0, "nxdomain", keyOf("other.example.", 28, 0)}.tell(t, c)
	for at, want := range map[time.Duration]cache.Freshness{s - 1: cache.Fresh, 11 * s: cache.Late} {
		fail(c, other, after(at))
		if at > 10*s {
			want = cache.Resting
		}
		if got := freshness(c, other, after(at)); got != want {
			t.Errorf("a failure and a denial, at %v: %d, want %d", at, got, want)
		}
	}
	check(t, c)
}

func TestLookupCut(t *testing.T) {
	t.Parallel()
	const s = time.Second
	deep := "d.c.b.a.example."
	tests := []struct {
		name  string
		said  []said
		asked string
		floor int
		flags byte
		at    time.Duration
		want  string // the name that is denied
	}{
		{name: "nothing held", asked: deep},
		{name: "parent", said: []said{{0, "nxdomain", keyOf("c.b.a.example.", 1, 0)}}, asked: deep, want: "c.b.a.example."},
		{name: "far above", said: []said{{0, "nxdomain", keyOf("example.", 28, 0)}}, asked: deep, want: "example."},
		{name: "itself is no ancestor", said: []said{{0, "nxdomain", keyOf(deep, 1, 0)}}, asked: deep},
		{name: "a sibling", said: []said{{0, "nxdomain", keyOf("x.b.a.example.", 1, 0)}}, asked: deep},
		{name: "the nearest", said: []said{{0, "nxdomain", keyOf("example.", 1, 0)}, {0, "nxdomain", keyOf("b.a.example.", 1, 0)}}, asked: deep, want: "b.a.example."},
		{name: "at the floor", said: []said{{0, "nxdomain", keyOf("example.", 1, 0)}}, asked: deep, floor: 9, want: "example."},
		{name: "below the floor", said: []said{{0, "nxdomain", keyOf("example.", 1, 0)}}, asked: deep, floor: 10},
		{name: "a floor above all", said: []said{{0, "nxdomain", keyOf("c.b.a.example.", 1, 0)}}, asked: deep, floor: 255},
		{name: "the root", said: []said{{0, "nxdomain", keyOf(".", 1, 0)}}, asked: deep, floor: 1},
		{name: "of the root", asked: "."},
		{name: "other flags", said: []said{{0, "nxdomain", keyOf("example.", 1, 1)}}, asked: deep},
		{name: "the same flags", said: []said{{0, "nxdomain", keyOf("example.", 1, 2)}}, asked: deep, flags: 2, want: "example."},
		{name: "of a subnet", said: []said{{0, "nxdomain", keyOf("example.", 1, 0, 0, 1, 8, 0, 10)}}, asked: deep},
		{name: "past its time", said: []said{{0, "nxdomain", keyOf("example.", 1, 0)}}, asked: deep, at: 10 * s},
		{name: "the nearest is past its time", said: []said{{0, "nxdomain", keyOf("b.a.example.", 1, 0)}, {5 * s, "nxdomain", keyOf("example.", 1, 0)}}, asked: deep, at: 11 * s, want: "example."},
		{name: "NODATA", said: []said{{0, "nodata", keyOf("example.", 1, 0)}}, asked: deep},
		{name: "a chain", said: []said{{0, "chain", keyOf("example.", 1, 0)}}, asked: deep},
		{name: "denied for its type only", said: []said{{0, "data", keyOf("example.", 1, 0)}, {0, "nxdomain", keyOf("example.", 28, 0)}}, asked: deep},
		{name: "taken away by data", said: []said{{0, "nxdomain", keyOf("example.", 28, 0)}, {0, "data", keyOf("example.", 1, 0)}}, asked: deep},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newStale(t, hourly)
			for _, s := range tt.said {
				s.tell(t, c)
			}
			asked := keyOf(tt.asked, 1)
			msg, ok := c.LookupCut(asked[:len(asked)-2], tt.floor, tt.flags, after(tt.at), nil)
			got := ""
			if ok {
				n := questionLen(msg[wire.HeaderLen:]) - 2
				got = string(wire.AppendText(nil, msg[wire.HeaderLen:][:n]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || !ok && len(msg) > 0 || ok && meaning(msg) != "nxdomain" {
				t.Errorf("%q (-want +got)\n%s", msg, diff)
			}
			if got := c.Stats().Cut == 1; got != ok {
				t.Errorf("counted: %t, want %t", got, ok)
			}
		})
	}
}
