// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A secondary applies transfers. It refuses a difference that does not fit its records, as BIND does.
type secondary struct {
	zone    *zone.Zone
	addr    netip.Addr
	records map[string]bool
	serial  uint32
	held    bool // it has a version
	full    int  // whole zones it got
	parts   int  // differences it got
}

func newSecondary(z *zone.Zone, n byte) *secondary {
	return &secondary{zone: z, addr: netip.AddrFrom4([4]byte{192, 0, 2, n})}
}

// pull transfers the zone.
func (s *secondary) pull(now time.Time) error {
	var list []string
	var serials []uint32
	incremental, err := s.zone.Records(now, zone.Secondary{Addr: s.addr, Serial: s.serial, HasSerial: s.held}, func(r zone.Record) error {
		if r.Type == wire.TypeSOA {
			serials, list = append(serials, binary.BigEndian.Uint32(r.Data[len(r.Data)-20:])), append(list, "")
			return nil
		}
		list = append(list, fmt.Sprintf("%q %d %d %q", r.Owner, r.Type, r.TTL, r.Data))
		return nil
	})
	if err != nil {
		return err
	}
	last := serials[len(serials)-1]
	if incremental {
		s.parts++
		if !slices.Equal(serials, []uint32{last, s.serial, last, last}) {
			return fmt.Errorf("SOA records %v from serial %d", serials, s.serial)
		}
	} else {
		if !slices.Equal(serials, []uint32{last, last}) {
			return fmt.Errorf("SOA records %v", serials)
		}
		s.records = map[string]bool{}
		s.full++
		list = append([]string{"", ""}, list...)
	}
	section := 0
	for _, record := range list {
		switch {
		case record == "":
			section++
		case s.records[record] != (section == 2):
			return fmt.Errorf("serial %d to %d, section %d: %s: held is %v", s.serial, last, section, record, s.records[record])
		case section == 2:
			delete(s.records, record)
		default:
			s.records[record] = true
		}
	}
	s.serial, s.held = last, true
	return nil
}

// check compares the records with those of a client that has none yet.
func (s *secondary) check(t *testing.T, now time.Time) {
	t.Helper()
	fresh := newSecondary(s.zone, 255)
	assert.NoError(t, fresh.pull(now))
	assert.Equal(t, "serial", fresh.serial, s.serial)
	if diff := cmp.Diff(fresh.records, s.records); diff != "" {
		t.Fatalf("serial %d (-zone +secondary):\n%s", s.serial, diff)
	}
}

// TestVersionsAgainstWhole makes random changes. Three secondary servers follow, each at its own pace.
func TestVersionsAgainstWhole(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		name string
		cfg  zone.Config
	}{
		{name: "plain", cfg: zone.Config{TTL: 5 * time.Second}},
		{name: "pod names", cfg: zone.Config{PodNames: true, NodeZone: "east"}},
		{name: "empty services ignored, namespaces chosen", cfg: zone.Config{IgnoreEmpty: true, Namespaces: []string{"shop", "default"}}},
		{name: "declared namespaces only", cfg: zone.Config{KnownNamespaces: true}},
		{name: "external names", cfg: zone.Config{External: true, Headless: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, uint64(100+i), tt.cfg)
			w.store.Versions().Keep(zone.Zones{w.zone}, w.now)
			followers := []*secondary{newSecondary(w.zone, 1), newSecondary(w.zone, 2), newSecondary(w.zone, 3)}
			for step := range 600 {
				w.step()
				freshen(w.store, w.now)
				if step%3 == 0 {
					w.store.Versions().Cut(w.now)
				}
				for j, s := range followers {
					if step%(1+7*j) == 0 {
						assert.NoError(t, s.pull(w.now))
						s.check(t, w.now)
					}
				}
			}
			w.store.Versions().Cut(w.now)
			if f := followers[0]; f.parts < 5*f.full {
				t.Errorf("%d differences, %d whole zones", f.parts, f.full)
			}
			for _, s := range followers {
				assert.NoError(t, s.pull(w.now))
				s.check(t, w.now)
				if len(s.records) != len(w.model.listed()) {
					t.Errorf("%d records, the model has %d", len(s.records), len(w.model.listed()))
				}
			}
		})
	}
}

// TestVersionsOfClusterSet changes imports at random, and the cluster's Namespaces, which select them. A secondary server follows.
func TestVersionsOfClusterSet(t *testing.T) {
	t.Parallel()
	h := newHarness(t, 200, zone.Config{})
	own, set := h.store, zone.NewClusterSet(h.store)
	zones := clusterSet(t, own, set, zone.Config{KnownNamespaces: true})
	set.Versions().Keep(zones, h.now)
	s := newSecondary(zones[1], 1)
	for range 600 {
		h.now = h.now.Add(time.Second)
		switch h.rnd.IntN(30) {
		case 0:
			own.PutNamespace(pick(h, namespaces()), h.now)
		case 1:
			own.Delete(zone.Namespaces, "", pick(h, namespaces()), h.now)
		case 2, 3:
			set.Delete(zone.Services, pick(h, namespaces()), pick(h, names()), h.now)
		case 4, 5, 6, 7, 8, 9, 10, 11, 12:
			slice := h.slice()
			slice.Cluster = pick(h, []string{"east", "west"})
			set.PutSlice(slice, h.now)
		default:
			svc := h.service()
			svc.Type %= zone.ExternalName // an import is a ClusterIP or headless service
			set.PutService(svc, h.now)
		}
		set.Versions().Cut(h.now)
		freshen(set, h.now)
		assert.NoError(t, s.pull(h.now))
		s.check(t, h.now)
	}
	if s.parts < 2*s.full {
		t.Errorf("%d differences, %d whole zones", s.parts, s.full)
	}
}

// shopOf returns a zone of n services, whose versions are kept, and a client that has it.
func shopOf(t *testing.T, n int) (*zone.Store, *secondary) {
	t.Helper()
	s := zone.NewStore()
	freshen(s, epoch())
	for i := range n {
		s.PutService(clusterIPService(i, 0), epoch())
	}
	z, err := zone.New(zone.Config{Store: s, Domain: "cluster.local."})
	assert.NoError(t, err)
	s.Versions().Keep(zone.Zones{z}, epoch())
	follower := newSecondary(z, 1)
	assert.NoError(t, follower.pull(epoch()))
	return s, follower
}

// clusterIPService is a service whose version says what port it has.
func clusterIPService(i, version int) zone.Service {
	return zone.Service{
		Namespace: "shop", Name: fmt.Sprint("s", i), Type: zone.ClusterIP, TTL: -1,
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
		Ports: []zone.Port{{Number: uint16(1 + version)}},
	}
}

// TestVersionsAreGiven follows clients that the differences do not fit: they get the whole zone.
func TestVersionsAreGiven(t *testing.T) {
	t.Parallel()
	const services = 10
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *zone.Store, z *zone.Zone, c *secondary)
		full int // whole zones after the first
	}{
		{name: "one change", do: func(*testing.T, *zone.Store, *zone.Zone, *secondary) {}},
		{name: "a version of another process", full: 1, do: func(_ *testing.T, _ *zone.Store, _ *zone.Zone, c *secondary) {
			c.addr = netip.MustParseAddr("192.0.2.77")
		}},
		{name: "a serial that was none", full: 1, do: func(_ *testing.T, _ *zone.Store, _ *zone.Zone, c *secondary) { c.serial-- }},
		{name: "no serial", full: 1, do: func(_ *testing.T, _ *zone.Store, _ *zone.Zone, c *secondary) { c.held = false }},
		{name: "most of the zone is gone", full: 1, do: func(_ *testing.T, s *zone.Store, _ *zone.Zone, _ *secondary) {
			for i := range services {
				s.Delete(zone.Services, "shop", fmt.Sprint("s", i), epoch())
			}
		}},
		{name: "the zone has other TTLs", full: 1, do: func(t *testing.T, s *zone.Store, _ *zone.Zone, c *secondary) {
			t.Helper()
			other, err := zone.New(zone.Config{Store: s, Domain: "cluster.local.", TTL: time.Minute})
			assert.NoError(t, err)
			before := s.Serial()
			s.Versions().Keep(zone.Zones{other}, epoch())
			if s.Serial() == before {
				t.Error("the serial number stays")
			}
			c.zone = other
		}},
		{name: "the same zone again", do: func(t *testing.T, s *zone.Store, _ *zone.Zone, c *secondary) {
			t.Helper()
			same, err := zone.New(zone.Config{Store: s, Domain: "cluster.local."})
			assert.NoError(t, err)
			s.Versions().Keep(zone.Zones{same}, epoch())
			c.zone = same
		}},
		{name: "versions are kept no more", full: 1, do: func(_ *testing.T, s *zone.Store, _ *zone.Zone, _ *secondary) {
			s.Versions().Keep(nil, epoch())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, c := shopOf(t, services)
			tt.do(t, s, c.zone, c)
			s.PutService(clusterIPService(services, 1), epoch())
			s.Versions().Cut(epoch())
			assert.NoError(t, c.pull(epoch()))
			c.check(t, epoch())
			assert.Equal(t, "whole zones", tt.full, c.full-1)
		})
	}
}

// TestVersionsOfTwoZones has a client with one zone ask for another under the same serial.
func TestVersionsOfTwoZones(t *testing.T) {
	t.Parallel()
	s, c := shopOf(t, 50)
	other, err := zone.New(zone.Config{Store: s, Domain: "corp.k8s."})
	assert.NoError(t, err)
	s.Versions().Keep(zone.Zones{c.zone, other}, epoch())
	for i, z := range []*zone.Zone{c.zone, other} {
		c = &secondary{zone: z, addr: c.addr, serial: c.serial, held: true}
		assert.NoError(t, c.pull(epoch()))
		assert.Equal(t, "whole zones", 1, c.full)
		s.PutService(clusterIPService(0, 3+i), epoch())
		s.Versions().Cut(epoch())
		assert.NoError(t, c.pull(epoch()))
		c.check(t, epoch())
		assert.Equal(t, "whole zones", 1, c.full)
	}
}

// TestVersionsBound changes services at full speed: the versions take at most 8 MiB, the serial number moves once a
// version, and a client within the bound still gets differences.
func TestVersionsBound(t *testing.T) {
	t.Parallel()
	const services = 2000
	s, old := shopOf(t, services)
	recent, now, most := newSecondary(old.zone, 2), epoch(), 0
	assert.NoError(t, recent.pull(now))
	for round := range 80 {
		for i := range services / 4 {
			s.PutService(clusterIPService(i, 1+round), now)
			s.PutService(clusterIPService(i, 1000+round), now)
		}
		most = max(most, s.Versions().Bytes())
		now = now.Add(time.Second)
		before := s.Serial()
		if after := s.Versions().Cut(now); after == before || after > uint32(now.Unix())+services {
			t.Fatalf("round %d: serial %d, then %d", round, before, after)
		}
		freshen(s, now)
		assert.NoError(t, recent.pull(now))
	}
	recent.check(t, now)
	assert.NoError(t, old.pull(now))
	old.check(t, now)
	t.Logf("%d bytes", most)
	if most > 8<<20 || most < 6<<20 {
		t.Errorf("the versions took %d bytes, want almost 8 MiB", most)
	}
	assert.Equal(t, "whole zones of the client that follows", 1, recent.full)
	assert.Equal(t, "whole zones of the client that came back", 2, old.full)
}

// TestVersionsOneLargeChange replaces more than the bound within one version.
func TestVersionsOneLargeChange(t *testing.T) {
	t.Parallel()
	const services = 40_000
	s, c := shopOf(t, services)
	before := s.Serial()
	for i := range services {
		s.PutService(clusterIPService(i, 1), epoch())
	}
	if b := s.Versions().Bytes(); b > 8<<20 {
		t.Errorf("%d bytes", b)
	}
	if s.Serial() == before {
		t.Error("the versions were dropped under the same serial number")
	}
	s.Versions().Cut(epoch())
	assert.NoError(t, c.pull(epoch()))
	c.check(t, epoch())
	assert.Equal(t, "whole zones", 2, c.full)
}

// TestVersionsWhileChanging follows a zone while another goroutine changes it.
func TestVersionsWhileChanging(t *testing.T) {
	t.Parallel()
	w := newHarness(t, 9, zone.Config{TTL: 5 * time.Second})
	now := w.now
	w.store.Versions().Keep(zone.Zones{w.zone}, now)
	c := newSecondary(w.zone, 1)
	done := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		defer close(done)
		for step := range 3000 {
			w.step()
			if step%5 == 0 {
				w.store.Versions().Cut(now)
			}
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		assert.NoError(t, c.pull(now))
	}
	changing.Wait()
	w.store.Versions().Cut(now)
	assert.NoError(t, c.pull(now))
	c.check(t, now)
}

// TestVersionsOff keeps nothing without zones, and nothing before the first transfer.
func TestVersionsOff(t *testing.T) {
	t.Parallel()
	s, c := shopOf(t, 5)
	s.Versions().Keep(nil, epoch())
	s.PutService(clusterIPService(9, 1), epoch())
	first := s.Serial()
	s.PutService(clusterIPService(9, 2), epoch())
	if s.Serial() == first {
		t.Error("a change without versions does not increase the serial number")
	}
	assert.Equal(t, "bytes without zones", 0, s.Versions().Bytes())
	s.Versions().Keep(zone.Zones{c.zone}, epoch())
	s.PutService(clusterIPService(9, 3), epoch())
	assert.Equal(t, "bytes before a transfer", 0, s.Versions().Bytes())
}

// TestVersionsOfManyClients has more clients than are remembered: the first one gets the whole zone again, the last one does not.
func TestVersionsOfManyClients(t *testing.T) {
	t.Parallel()
	s, first := shopOf(t, 5)
	last := newSecondary(first.zone, 2)
	for i := range 2000 {
		last = &secondary{zone: first.zone, addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		assert.NoError(t, last.pull(epoch()))
	}
	assert.Equal(t, "remembered versions", 1024, s.Versions().Given())
	for _, tt := range []struct {
		c    *secondary
		full int
	}{{first, 2}, {last, 1}} {
		assert.NoError(t, tt.c.pull(epoch()))
		assert.Equal(t, "whole zones", tt.full, tt.c.full)
	}
}
