// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// dump returns a copy of each record of the store.
func dump(tb testing.TB, s *zone.Store, now time.Time) [][]byte {
	tb.Helper()
	var records [][]byte
	err := s.Dump(now, func(record []byte) error {
		records = append(records, bytes.Clone(record))
		return nil
	})
	assert.NoError(tb, err)
	return records
}

// restored returns a store with the records restored a second later.
func restored(tb testing.TB, records [][]byte, now time.Time) *zone.Store {
	tb.Helper()
	s := zone.NewStore()
	s.Expect(zone.Services, zone.Slices, zone.Namespaces, zone.Pods)
	if _, err := s.Restore(slices.Values(records), time.Second, time.Hour, now); err != nil {
		tb.Fatal(err)
	}
	return s
}

// sorted returns the records in a stable order: a restore may change it.
func sorted(records [][]byte) []string {
	list := make([]string, 0, len(records))
	for _, r := range records {
		if r[0] != 1 { // views have another age
			list = append(list, string(r))
		}
	}
	slices.Sort(list)
	return list
}

// TestRestoreMatchesOriginal dumps and restores random stores: every object is back, and putting all of them again is no
// change.
func TestRestoreMatchesOriginal(t *testing.T) {
	t.Parallel()
	list := questions()
	for seed := range uint64(6) {
		w := newHarness(t, seed, zone.Config{TTL: 5 * time.Second, Pods: zone.PodMode(seed % 3), PodNames: seed%2 == 0, NodeZone: "east"})
		for range 150 {
			w.step()
		}
		freshen(w.store, w.now)
		records := dump(t, w.store, w.now)
		s := restored(t, records, w.now)
		if diff := cmp.Diff(sorted(records), sorted(dump(t, s, w.now))); diff != "" {
			t.Fatalf("seed %d: dumped again (-want +got):\n%s", seed, diff)
		}
		now := w.now.Add(time.Minute)
		s.Observe([][]byte{[]byte("\x05local\x00")}, ownerFunc(func(owner []byte) { t.Errorf("seed %d: notified of %q", seed, owner) }))
		serial := s.Serial()
		w.putAll(s, now)
		if s.Serial() != serial {
			t.Errorf("seed %d: what was restored counts as changed", seed)
		}
		// The answers equal those of the dumped store once the kinds are synced.
		freshen(s, now)
		cfg := w.model.cfg
		cfg.Store = s
		var err error
		if w.zone, err = zone.New(cfg); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			w.compareOne(int(seed), pick(w, list), pick(w, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME}))
		}
	}
}

// putAll puts the model's objects into a store.
func (h *harness) putAll(s *zone.Store, now time.Time) {
	for _, svc := range h.model.services {
		s.PutService(svc, now)
	}
	for _, sl := range h.model.slices {
		s.PutSlice(sl, now)
	}
	for _, p := range h.model.pods {
		s.PutPod(p, now)
	}
	for name := range h.model.namespaces {
		s.PutNamespace(name, now)
	}
}

// TestRestoreDoesNotNotify covers the order of a start: observers register before the store is filled.
func TestRestoreDoesNotNotify(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	freshen(s, now)
	other, notified := zone.NewStore(), 0
	other.Observe([][]byte{[]byte("\x05local\x00")}, ownerFunc(func([]byte) { notified++ }))
	if _, err := other.Restore(slices.Values(dump(t, s, now)), 0, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	if notified != 0 {
		t.Errorf("notified %d times", notified)
	}
	other.Delete(zone.Services, "shop", "web", now)
	if notified == 0 {
		t.Error("not notified of later changes")
	}
}

// TestFirstSync completes the first list after a restore: missing objects are removed, and denied without a mark.
func TestFirstSync(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	freshen(s, now)
	s = restored(t, dump(t, s, now), now)
	ask := func() summary {
		return summaryOf(t, zone.Config{Store: s, AllSlices: true}, "web.shop.svc.cluster.local.", dns.TypeA, now)
	}
	assert.Same(t, "restored", summary{zone.Answered, "NOERROR", wire.EDEStaleAnswer, 1}, ask())
	for kind, stats := range s.Stats().Kinds {
		if zone.Kind(kind) < zone.Imports && !stats.Restored {
			t.Error("a kind is not reported as restored")
		}
	}
	s.Retain(zone.Services, func(_, name string) bool { return name != "web" }, now)
	assert.Same(t, "gone, not in sync", summary{zone.Answered, "NXDOMAIN", wire.EDEStaleNXDomain, 0}, ask())
	freshen(s, now)
	assert.Same(t, "in sync", summary{zone.Answered, "NXDOMAIN", wire.EDENone, 0}, ask())
	if s.Restored(zone.Services) || s.Stats().Kinds[zone.Services].Restored {
		t.Error("still reported as restored")
	}
}

// TestDumpedKinds dumps the complete kinds only.
func TestDumpedKinds(t *testing.T) {
	t.Parallel()
	now := epoch()
	kinds := func(s *zone.Store) (list []byte) {
		for _, r := range dump(t, s, now) {
			if r[0] == 1 {
				list = append(list, r[1])
			}
		}
		slices.Sort(list)
		return list
	}
	s := zone.NewStore()
	small(s)
	if got := dump(t, s, now); len(got) != 0 {
		t.Errorf("before the first list: %d records", len(got))
	}
	s.SetSynced(zone.Slices)
	if got := dump(t, s, now); len(got) != 0 {
		t.Errorf("complete, but never confirmed: %d records", len(got))
	}
	s.ConfirmFresh(zone.Slices, now)
	s.SetSynced(zone.Namespaces)
	s.SetAlwaysFresh(zone.Namespaces)
	want := []byte{byte(zone.Slices), byte(zone.Namespaces)}
	if got := kinds(s); !bytes.Equal(got, want) {
		t.Errorf("kinds %v, want %v", got, want)
	}
	if got := kinds(restored(t, dump(t, s, now), now)); !bytes.Equal(got, want) {
		t.Errorf("restored, and dumped again: kinds %v, want %v", got, want)
	}
}

// TestRestoredAge checks that ages continue across restarts.
func TestRestoredAge(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	freshen(s, now)
	now = now.Add(time.Minute)
	s.ConfirmFresh(zone.Services, now)
	want := map[zone.Kind]time.Duration{zone.Services: 0, zone.Slices: time.Minute, zone.Namespaces: time.Minute, zone.Pods: time.Minute}
	for round := range 3 {
		records := dump(t, s, now)
		s = zone.NewStore()
		for _, most := range []time.Duration{0, time.Minute + time.Duration(round+1)*time.Hour - 1} {
			if _, err := s.Restore(slices.Values(records), time.Hour, most, now); err == nil || s.Stats().Kinds[zone.Services].Objects != 0 {
				t.Errorf("round %d: restored though it is older than %s: %v", round, most, err)
			}
		}
		got, err := s.Restore(slices.Values(records), time.Hour, time.Minute+time.Duration(round+1)*time.Hour, now)
		assert.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("round %d: objects", round), 8, got)
		for kind, age := range want {
			age += time.Hour
			want[kind] = age
			assert.Equal(t, fmt.Sprintf("round %d: kind %d is old", round, kind), age, s.Age(kind, now))
		}
	}
}

// TestRestoreRefuses damages every byte of every record: either it is still a record, or nothing is restored.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	freshen(s, now)
	records := dump(t, s, now)
	refused, cut := 0, 0
	try := func(i int, bad []byte) bool {
		t.Helper()
		damaged := slices.Clone(records)
		damaged[i] = bad
		s := zone.NewStore()
		if _, err := s.Restore(slices.Values(damaged), 0, time.Hour, now); err == nil {
			return false
		}
		for kind, k := range s.Stats().Kinds {
			if k.Objects != 0 || k.Restored {
				t.Fatalf("record %d as %x is refused, and %d objects of kind %d are there", i, bad, k.Objects, kind)
			}
		}
		return true
	}
	for i, record := range records {
		for at := range record {
			if !try(i, record[:at]) {
				t.Errorf("record %d, cut to %x, is accepted", i, record[:at])
			}
			cut++
			for _, b := range []byte{0, 1, 0x7f, 0x80, 0xff, record[at] + 1} {
				bad := bytes.Clone(record)
				bad[at] = b
				if try(i, bad) {
					refused++
				}
			}
		}
		if !try(i, append(bytes.Clone(record), 0)) {
			t.Errorf("record %d with trailing bytes is accepted", i)
		}
	}
	if refused < cut/2 || !try(0, []byte{9}) {
		t.Errorf("%d refused", refused)
	}
	// Without this, objects of a kind without its view would count as complete.
	if _, err := zone.NewStore().Restore(slices.Values(records[1:]), 0, time.Hour, now); err == nil {
		t.Error("objects without their view are accepted")
	}
}

// TestDumpEnds checks that the first error of emit ends the dump.
func TestDumpEnds(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	small(s)
	freshen(s, now)
	whole := len(dump(t, s, now))
	full := errors.New("full")
	for most := range whole {
		n := 0
		err := s.Dump(now, func([]byte) error {
			if n++; n > most {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) || n != most+1 {
			t.Errorf("full after %d: %d records, error %v", most, n, err)
		}
	}
}

// TestDumpWhileWritten dumps during changes: the result can always be restored.
func TestDumpWhileWritten(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	freshen(s, now)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		w := newHarness(t, 3, zone.Config{})
		w.store = s
		for {
			select {
			case <-done:
				return
			default:
				w.step()
			}
		}
	})
	for range 200 {
		restored(t, dump(t, s, now), now)
	}
	close(done)
	wg.Wait()
}

// FuzzRestore restores arbitrary records. Accepted records equal a dump of the result.
func FuzzRestore(f *testing.F) {
	for seed := range uint64(4) {
		w := newHarness(f, seed, zone.Config{})
		for range 30 * seed {
			w.step()
		}
		freshen(w.store, w.now)
		var all []byte
		for _, r := range dump(f, w.store, w.now) {
			all = append(append(all, byte(len(r))), r...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, all []byte) {
		var records [][]byte
		for len(all) > 0 {
			n := min(int(all[0]), len(all)-1)
			records = append(records, all[1:1+n])
			all = all[1+n:]
		}
		s, now := zone.NewStore(), epoch()
		if _, err := s.Restore(slices.Values(records), 0, time.Hour, now); err != nil {
			return
		}
		again := dump(t, s, now)
		if diff := cmp.Diff(sorted(again), sorted(dump(t, restored(t, again, now), now))); diff != "" {
			t.Fatalf("dumped again (-want +got):\n%s", diff)
		}
	})
}

// TestDumpOfLargeCluster measures time and size. The bounds allow for a busy host.
func TestDumpOfLargeCluster(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes most of the time")
	}
	s, now := clusterOf(11000, 100, 10), epoch()
	began, addrLen := time.Now(), 0
	records := dump(t, s, now)
	took := time.Since(began)
	for _, r := range records {
		addrLen += len(r)
	}
	began = time.Now()
	back := restored(t, records, now)
	tookBack := time.Since(began)
	t.Logf("11,000 services and 100,000 endpoints: %d records, %d bytes, dumped in %s, restored in %s", len(records), addrLen, took, tookBack)
	if took > 2*time.Second || tookBack > 5*time.Second || addrLen > 4<<20 {
		t.Error("too slow or too large")
	}
	assert.Same(t, "slices", s.Stats().Kinds[zone.Slices].Objects, back.Stats().Kinds[zone.Slices].Objects)
}

func BenchmarkDump(b *testing.B) {
	s, now := clusterOf(11000, 100, 10), epoch()
	b.Run("dump", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			assert.NoError(b, s.Dump(now, func([]byte) error { return nil }))
		}
	})
	records := dump(b, s, now)
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			restored(b, records, now)
		}
	})
}
