// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/zone"
)

// largeGeneration holds 11,000 services, 100,000 endpoints, and as many answers as a cache of 64 MiB holds.
func largeGeneration(t *testing.T) *generation {
	t.Helper()
	r, now := emptyGeneration(t), time.Now()
	var err error
	if r.cache, err = cache.New(cache.Config{Size: 64 << 20}, now); err != nil {
		t.Fatal(err)
	}
	for i := range 250_000 {
		key := append(fmt.Appendf([]byte{12}, "name-%07d", i), 0, 0, 1, 0)
		msg := append(make([]byte, 12, 128), key[:len(key)-1]...)
		msg[2], msg[3], msg[5], msg[7] = 0x81, 0x80, 1, 1
		msg = append(msg, 0, 1, 0xc0, 12, 0, 1, 0, 1)
		a := cache.Answer{TTLs: []uint16{uint16(len(msg))}, Lifetime: time.Hour}
		a.Msg = append(binary.BigEndian.AppendUint32(msg, 3600), 0, 4, 192, 0, 2, byte(i))
		r.cache.Put(key, &a, now)
	}
	s := r.cluster.store
	s.Expect(zone.Services, zone.Slices)
	for i := range 11_000 {
		s.PutService(zone.Service{
			Namespace: fmt.Sprint("team-", i%50), Name: fmt.Sprint("service-", i), TTL: -1,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}, Ports: []zone.Port{{Name: "http", Number: 80}},
		}, now)
	}
	for i := range 1000 {
		sl := zone.Slice{Namespace: "team-1", Name: fmt.Sprint("slice-", i), Service: fmt.Sprint("service-", i/10*50+1)}
		for j := range 100 {
			addr := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})
			sl.Endpoints = append(sl.Endpoints, zone.Endpoint{Addrs: []netip.Addr{addr}, Ready: true})
		}
		s.PutSlice(sl, now)
	}
	for _, kind := range []zone.Kind{zone.Services, zone.Slices} {
		s.ConfirmFresh(kind, now)
		s.SetSynced(kind)
	}
	return r
}

// TestSnapshotLarge measures a whole snapshot of 16 MiB on a real file system. The bounds are for a machine under
// load.
func TestSnapshotLarge(t *testing.T) {
	r := largeGeneration(t)
	log := new(notes)
	s := keeping(snapshot.Dir(t.TempDir()), log)
	s.attempt(t.Context(), time.Minute, r)
	saved := s.read()
	next := emptyGeneration(t)
	var err error
	if next.cache, err = cache.New(cache.Config{Size: 64 << 20}, time.Now()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.load(t.Context(), next)
	took, loaded := time.Since(began), s.read().Loaded
	t.Logf("saved %d bytes in %s; loaded %d answers and %d objects in %s", saved.Bytes, saved.Duration, loaded.Entries, loaded.Objects, took)
	switch {
	case saved.Saved != 1 || saved.Bytes > r.config.Snapshot.Size || saved.Bytes < r.config.Snapshot.Size*4/5: // the hash decides how many of the answers were evicted
		t.Errorf("saved: %+v", saved)
	case loaded.Objects != 12_000 || loaded.Entries < 200_000:
		t.Errorf("loaded: %+v; log %q", loaded, log.take())
	case saved.Duration > 20*time.Second || took > 20*time.Second:
		t.Error("too slow")
	}
}
