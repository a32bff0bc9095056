// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/cache"
)

// fillVariable makes the test binary fill a cache and report instead of running tests.
const fillVariable = "CACHE_TEST_FILL"

func TestMain(m *testing.M) {
	if what := os.Getenv(fillVariable); what != "" {
		if err := fillAndReport(what == "resize"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A footprint is the memory of the filled cache and its process, in bytes.
type footprint struct {
	Before, After int64 // resident, before the cache was made and when it was full
	Stats         cache.Stats
	Resized       []resized
}

// A resized is the measurement of one resize.
type resized struct {
	From, To    int64 // the sizes
	Peak, After int64 // resident, at most meanwhile and when it was done
	Entries     int64
}

const fillSize = 64 << 20

// fillNames is enough to fill the cache, and in a soak four times as many.
func fillNames() int { return proctest.OrdinaryOrSoak(500_000, 2_000_000) }

// fillAndReport stores random names, uses most of them once, resizes the cache if resize is set, and
// prints a footprint.
func fillAndReport(resize bool) error {
	var f footprint
	var err error
	if f.Before, err = resident(); err != nil {
		return err
	}
	c, err := cache.New(cache.Config{Size: fillSize}, epoch)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	rdata := make([]byte, 512)
	for i := range fillNames() {
		// As in DNS traffic: most answers have 120 to 400 bytes, a few are larger.
		name := fmt.Sprintf("%0*x.%x.example.", 8+r.IntN(24), r.Uint32(), i)
		key := keyOf(name, 1, 0)
		n := r.IntN(180)
		if i%100 == 0 {
			n = len(rdata)
		}
		now := after(time.Duration(i) * time.Microsecond)
		c.Put(key, answerTo(key, time.Hour, rr{rrtype: 16, ttl: 3600, rdata: rdata[:n]}), now)
		if r.IntN(4) > 0 {
			c.Lookup(key, now, nil)
		}
	}
	debug.FreeOSMemory() // the names' own garbage
	if f.After, err = resident(); err != nil {
		return err
	}
	f.Stats = c.Stats()
	if resize {
		if f.Resized, err = resizeOften(c); err != nil {
			return err
		}
	}
	runtime.KeepAlive(c)
	return json.NewEncoder(os.Stdout).Encode(&f)
}

// resizeOften resizes c and its successors, and measures each resize.
func resizeOften(c *cache.Cache) (all []resized, err error) {
	from := int64(fillSize)
	for _, to := range []int64{48 << 20, 72 << 20, 8 << 20, 64 << 20, 64 << 20, 16 << 20} {
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			return nil, err // 5 begins the peak anew
		}
		if c, err = c.Resize(to, after(time.Minute)); err != nil {
			return nil, err
		}
		r := resized{From: from, To: to, Entries: c.Stats().Entries}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return nil, err
		}
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscanf(peak, "%d kB", &r.Peak); err != nil {
			return nil, err
		}
		r.Peak <<= 10
		debug.FreeOSMemory()
		if r.After, err = resident(); err != nil {
			return nil, err
		}
		all, from = append(all, r), to
	}
	return all, nil
}

// resident returns the resident bytes of the process.
func resident() (int64, error) {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, fmt.Errorf("reading statm: %q", statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// footprintOf runs the test binary to fill a cache in its own process.
func footprintOf(t *testing.T, what string) (f footprint) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/statm, which only Linux has")
	}
	if raceEnabled {
		t.Skip("the race detector's own memory would be counted")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fillVariable+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	assert.NoError(t, err)
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return f
}

// TestResidentMemory fills a cache of the default size with many names in its own process, and
// measures its resident memory.
func TestResidentMemory(t *testing.T) {
	t.Parallel()
	f := footprintOf(t, "fill")
	s := f.Stats
	t.Logf("%d KiB resident more, %d entries, %+v", (f.After-f.Before)>>10, s.Entries, s)
	if s.Insertions != uint64(fillNames()) || s.Evictions == 0 || s.Capacity > fillSize || s.Bytes+s.Fixed > s.Capacity {
		t.Errorf("not filled, or over its size: %+v", s)
	}
	if grown := f.After - f.Before; grown > fillSize/10*11 || grown < fillSize/10*9 {
		t.Errorf("grew by %d bytes, want %d within a tenth", grown, fillSize)
	}
}

// TestResizedMemory resizes a full cache in its own process, and measures peak resident memory. The
// peak is little more than the larger of the two sizes; afterwards the old cache takes nothing.
func TestResizedMemory(t *testing.T) {
	t.Parallel()
	f := footprintOf(t, "resize")
	for _, r := range f.Resized {
		peak, left, most := r.Peak-f.Before, r.After-f.Before, max(r.From, r.To)
		t.Logf("%d to %d MiB: %d KiB at most, %d KiB left, %d entries", r.From>>20, r.To>>20, peak>>10, left>>10, r.Entries)
		if peak > most+most/5+8<<20 {
			t.Errorf("%d to %d MiB: %d KiB resident at most", r.From>>20, r.To>>20, peak>>10)
		}
		if left > r.To+r.To/10+8<<20 {
			t.Errorf("%d to %d MiB: %d KiB left resident", r.From>>20, r.To>>20, left>>10)
		}
	}
	if len(f.Resized) == 0 {
		t.Error("never resized")
	}
}
