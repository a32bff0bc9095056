// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/snapshot/snapshottest"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// TestSnapshotCentral uses the saved endpoints of the central resolver until the source reports them, if they are not too old.
func TestSnapshotCentral(t *testing.T) {
	t.Parallel()
	withCentral := func() *generation {
		r := emptyGeneration(t)
		r.config.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
		r.cluster.Endpoints = new(upstream.Service)
		var err error
		r.cluster.Central, err = upstream.New(upstream.Config{
			LoopDetector: upstream.NewLoopDetector(nil), Zone: r.cluster.Domains[0], Endpoints: r.cluster.Endpoints.Endpoints(), Connections: 1, Log: slog.New(slog.DiscardHandler),
		})
		assert.NoError(t, err)
		return r
	}
	ready := []upstream.ServiceEndpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:53"), Zone: "a b"}, {Addr: netip.MustParseAddrPort("[fd00::1]:5353")}}
	own := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}
	before := withCentral()
	before.cluster.Endpoints.Set(ready, own)
	now := time.Now()
	var disk *snapshottest.Disk
	next := func(from *generation, later time.Duration) *generation {
		disk = snapshottest.NewDisk()
		s := keeping(disk, new(notes))
		s.Clocks = func() snapshot.ClockState { return snapshot.ClockState{Wall: now} }
		s.attempt(t.Context(), time.Second, from)
		r := withCentral()
		s.Clocks = func() snapshot.ClockState { return snapshot.ClockState{Wall: now.Add(later)} }
		s.load(t.Context(), r)
		if got := s.Stats().Loaded.Outcome; got != snapshot.OutcomeLoaded {
			t.Fatalf("%s", got)
		}
		return r
	}
	r := next(before, 10*time.Hour)
	records := recordsOf(t, r.cluster.Endpoints)
	assert.Same(t, "records", []string{"10.1.0.1:53 a b", "[fd00::1]:5353 ", "10.96.0.10:53"}, records[2:])
	if ready, own := r.cluster.Endpoints.Confirmed(); len(ready)+len(own) > 0 {
		t.Error("the restored endpoints count as confirmed")
	}
	age, err := strconv.ParseInt(records[1], 10, 64)
	if age := time.Duration(age); err != nil || age < 10*time.Hour || age > 10*time.Hour+time.Minute || r.cluster.Central.Empty() {
		t.Errorf("age %s, %v, no server: %t", age, err, r.cluster.Central.Empty())
	}
	if r := next(r, 13*time.Hour); r.cluster.Central.Empty() {
		t.Error("after 23 hours in all there is no server")
	}
	if r := next(r, 15*time.Hour); !r.cluster.Central.Empty() {
		t.Error("after 25 hours in all, of two agents, there is a server")
	}
	r.cluster.Endpoints.Set(ready[:1], own)
	if r = next(r, 15*time.Hour); r.cluster.Central.Empty() {
		t.Error("after a new report there is no server")
	}
	use, err := r.cluster.Endpoints.Restore("scope", slices.Values([][]byte{[]byte("scope"), []byte("0")}), 0, time.Hour, now)
	assert.NoError(t, err)
	use()
	if r.cluster.Central.Empty() {
		t.Error("the reported endpoints are replaced by the restored ones")
	}
}

// recordsOf are the records of a service's endpoints now.
func recordsOf(t *testing.T, s *upstream.Service) (list []string) {
	t.Helper()
	assert.NoError(t, s.Dump("scope", time.Now(), func(record []byte) error {
		list = append(list, string(record))
		return nil
	}))
	return list
}

// TestSnapshotWriteErrors counts each failed write, logs the first of a row, and serves on.
func TestSnapshotWriteErrors(t *testing.T) {
	t.Parallel()
	disk, log := &failingDisk{Disk: snapshottest.NewDisk()}, new(notes)
	r, s := emptyGeneration(t), keeping(disk, log)
	attempt := func(createErr error) []string {
		disk.set(createErr)
		s.attempt(t.Context(), time.Second, r)
		return log.take()
	}
	steps := []struct {
		createErr error
		want      string // of the log
		hint      string
	}{
		{nil, "", ""},
		{syscall.ENOSPC, "no space left on device", "twice snapshot.size"},
		{syscall.ENOSPC, "", ""},
		{syscall.EROFS, "read-only file system", "without readOnly"},
		{syscall.EROFS, "", ""},
		{syscall.EACCES, "permission denied", "give the user"},
		{nil, "snapshot saved", ""},
		{nil, "", ""},
		{syscall.EROFS, "read-only file system", "without readOnly"},
	}
	for i, step := range steps {
		lines := strings.Join(attempt(step.createErr), "\n")
		if (lines == "") != (step.want == "") || !strings.Contains(lines, step.want) || !strings.Contains(lines, step.hint) {
			t.Errorf("step %d: log %q, want %q with %q", i, lines, step.want, step.hint)
		}
		if got := s.Stats().LastError; (got == "") != (step.createErr == nil) {
			t.Errorf("step %d: last error %q", i, got)
		}
	}
	if got := s.Stats(); got.Saved != 3 || got.Failed != 6 {
		t.Errorf("%d saved, %d failed, want 3 and 6", got.Saved, got.Failed)
	}
}

// TestSnapshotHangs ends though the file system does not respond, and goes on when it does.
func TestSnapshotHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk, log := &failingDisk{Disk: snapshottest.NewDisk(), hangs: make(chan struct{})}, new(notes)
		r, s := emptyGeneration(t), keeping(disk, log)
		for i := range 3 {
			began := time.Now()
			s.attempt(t.Context(), lastSaveTimeout, r)
			if took := time.Since(began); took > lastSaveTimeout+300*time.Millisecond {
				t.Errorf("attempt %d took %s", i, took)
			}
		}
		if got := s.Stats(); got.Failed != 3 || got.LastError != "the file system does not respond" {
			t.Errorf("%+v", got)
		}
		close(disk.hangs)
		synctest.Wait()
		s.attempt(t.Context(), lastSaveTimeout, r)
		if got := s.Stats(); got.Saved != 1 || got.LastError != "" {
			t.Errorf("when it answers: %+v", got)
		}
	})
}

// TestSnapshotDefect has the file system panic: that costs the attempt, and is counted.
func TestSnapshotDefect(t *testing.T) {
	t.Parallel()
	log := new(notes)
	r, s := emptyGeneration(t), keeping(snapshottest.NewDisk(), log)
	good := s.Open
	s.Open = func(string) snapshot.Folder { panic("a trap") }
	s.load(t.Context(), r)
	s.attempt(t.Context(), time.Second, r)
	if got := s.Stats(); got.Panics != 2 || got.Failed != 1 || got.Loaded.Outcome != snapshot.OutcomeRefused {
		t.Errorf("%+v, want two counted, one of a snapshot refused and one of one not saved", got)
	}
	if n := strings.Count(strings.Join(log.take(), "\n"), "recovered from a panic"); n != 2 {
		t.Errorf("logged %d times, want twice", n)
	}
	s.Open = good
	s.attempt(t.Context(), time.Second, r)
	if got := s.Stats(); got.Saved != 1 || got.LastError != "" {
		t.Errorf("the next one: %+v", got)
	}
}

// TestSnapshotTooLarge leaves the cluster zone out if it does not fit whole, and logs that once.
func TestSnapshotTooLarge(t *testing.T) {
	t.Parallel()
	disk, log := snapshottest.NewDisk(), new(notes)
	r, s := emptyGeneration(t), keeping(disk, log)
	learn(t, r)
	for i := range 3000 {
		r.cluster.Store.PutService(zone.Service{Namespace: "shop", Name: fmt.Sprint("web-", i), TTL: -1}, time.Now())
	}
	r.config.Snapshot.Size = 40 << 10
	for range 2 {
		s.attempt(t.Context(), time.Second, r)
	}
	if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "too large for the snapshot") {
		t.Errorf("log %q", lines)
	}
	if got := len(disk.Content(snapshot.Name)); got > 40<<10 {
		t.Errorf("%d bytes", got)
	}
	next := emptyGeneration(t)
	keeping(disk, log).load(t.Context(), next)
	if answer, _ := holdsLearned(next); !answer || next.cluster.Restored() {
		t.Errorf("the next one has the answer: %t, the cluster: %t", answer, next.cluster.Restored())
	}
}

// TestSnapshotPeriod saves once a period while the agent serves, by the current configuration, and at the end.
func TestSnapshotPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := snapshottest.NewDisk()
		s, ready := keeping(disk, new(notes)), make(chan struct{})
		s.running, s.handover, s.ready = new(atomic.Pointer[generation]), new(socketHandover), ready
		use := func(folder string, period time.Duration) {
			r := emptyGeneration(t)
			r.config.Snapshot.Folder, r.config.Snapshot.Period = folder, period
			if old := s.running.Swap(r); old != nil {
				s.apply(old, r)
			}
		}
		expect := func(saved uint64, what string) {
			t.Helper()
			synctest.Wait()
			if got := s.Stats(); got.Saved != saved || got.Failed != 0 {
				t.Errorf("%s: %d saved, %d failed, want %d", what, got.Saved, got.Failed, saved)
			}
		}
		use("", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		time.Sleep(time.Hour)
		expect(0, "off")
		use("/disk", time.Minute)
		time.Sleep(10 * time.Minute)
		expect(0, "before it serves")
		s.saveLast(ctx)
		expect(0, "the last of one that never served")
		close(ready)
		time.Sleep(10*time.Minute + time.Second)
		expect(10, "each minute")
		use("/disk", time.Hour)
		time.Sleep(10*time.Hour + time.Second)
		expect(20, "each hour")
		use("", time.Minute)
		time.Sleep(time.Hour)
		expect(20, "off again")
		use("/disk", time.Hour)
		cancel()
		wg.Wait()
		s.saveLast(ctx)
		expect(21, "at the end")
	})
}
