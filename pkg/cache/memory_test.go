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

	"github.com/nodecache/node-cache/pkg/cache"
)

// fillVariable makes the test binary fill a cache and report, in place of testing.
const fillVariable = "CACHE_TEST_FILL"

func TestMain(m *testing.M) {
	if os.Getenv(fillVariable) != "" {
		if err := fillAndReport(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A footprint is what the filled cache and its process take, in bytes.
type footprint struct {
	Before, After int64 // resident, before the cache was made and when it was full
	Stats         cache.Stats
}

const (
	fillSize  = 64 << 20
	fillNames = 2_000_000
)

// fillAndReport puts random names, asks for most of them once, and prints a footprint.
func fillAndReport() error {
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
	for i := range fillNames {
		// As in DNS traffic: most answers are of 120 to 400 octets, a few are larger.
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
	runtime.KeepAlive(c)
	return json.NewEncoder(os.Stdout).Encode(&f)
}

// resident is the bytes of the process that are in memory.
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

// TestResidentMemory fills a cache of the default size with two million names in
// a process of its own, and asks the kernel what that takes.
func TestResidentMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/self/statm, which only Linux has")
	}
	if raceEnabled {
		t.Skip("the race detector's own memory would be counted")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fillVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var f footprint
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	s := f.Stats
	t.Logf("%d KiB resident more, %d entries, %+v", (f.After-f.Before)>>10, s.Entries, s)
	if s.Insertions != fillNames || s.Evictions == 0 || s.Capacity > fillSize || s.Bytes+s.Fixed > s.Capacity {
		t.Errorf("not filled within its size: %+v", s)
	}
	if grown := f.After - f.Before; grown > fillSize/10*11 || grown < fillSize/10*9 {
		t.Errorf("grew by %d bytes, want %d within a tenth", grown, fillSize)
	}
}
