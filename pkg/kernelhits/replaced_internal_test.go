// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/nodecache/node-cache/internal/assert"
)

// replacedNames are the names whose answers are replaced. That of each has another byte only.
const replacedNames = 4

// replacedQuery is a frame with a query for a name of one letter, and with an OPT record for every other name.
func replacedQuery(i int) []byte {
	frame := slices.Concat([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0},
		[]byte{0x45, 1, 0, 47, 0, 2, 0, 0, 9, 17, 0x2d, 0xb8, 192, 0, 2, 1, 192, 0, 2, 2},
		[]byte{4, 0, 0, 53, 0, 27, 0, 0},
		[]byte{7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 'a' + byte(i), 0, 0, 16, 0, 1})
	if i%2 == 1 {
		frame = addOPT(frame, "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00")
	}
	return frame
}

// addOPT adds an OPT record to the query.
func addOPT(frame []byte, record string) []byte {
	copy(frame[24:], "\x2d\xad") // the checksum of the IP header
	for _, at := range []int{17, 39} {
		frame[at] += optLen
	}
	frame[42+11] = 1
	return append(frame, record...)
}

func replacedAnswer(i int) *hitsAnswer {
	a := &hitsAnswer{Until: math.MaxUint64, Len: 450, Flags: networkOrder(0x8183), Searched: 1}
	copy(a.Data[:], bytes.Repeat([]byte{'a' + byte(i)}, int(a.Len)))
	return a
}

// openReplaced loads the programs, which answer at the address of replacedQuery.
func openReplaced(t *testing.T) *Responder {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading programs needs root")
	}
	k, err := Open(Config{
		Size: MaxSize, Permit: time.Hour, Lease: time.Hour, Port: 53, Log: slog.New(slog.DiscardHandler),
	})
	assert.NoError(t, err)
	t.Cleanup(k.Close)
	k.Beat()
	k.Set(true)
	k.setReplaced(t)
	return k
}

// setReplaced makes the addresses of the queries the agent's.
func (k *Responder) setReplaced(t *testing.T) {
	t.Helper()
	assert.NoError(t, k.SetDestinations([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:53"), netip.MustParseAddrPort("[2001:db8::2]:53")}))
}

// TestReplaced replaces and removes answers while the program runs on two CPUs. The kernel may use the memory of one for another at
// once: no reply has a byte of another name's, and a query that passes is as it was. Each reply is counted, also those of both CPUs
// at a time.
func TestReplaced(t *testing.T) {
	k := openReplaced(t)
	const loopback = 1
	at, client := hitsClientKey{Ifindex: loopback, Family: 4}, hitsClient{Addr: addressOf(netip.MustParseAddr("192.0.2.1")), Answered: bootTime()}
	assert.NoError(t, k.objects.Clients.Put(at, client))
	length := 3 * time.Second
	if os.Getenv("SOAK") != "" {
		length = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var hits, passed, writes atomic.Int64
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			defer cancel()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for ctx.Err() == nil {
				for i := range replacedNames {
					if hit, ok := runReplaced(t, k, i); !ok {
						return
					} else if hit {
						hits.Add(1)
					} else {
						passed.Add(1)
					}
				}
			}
		})
	}
	for n := 0; ctx.Err() == nil; n++ {
		i := n % replacedNames
		key, _, _ := keyOf(replacedQuery(i)[42:])
		err := k.table.change(&key, func() error {
			if n%64 < replacedNames {
				return k.objects.Answers.Delete(&key)
			}
			return k.objects.Answers.Put(&key, replacedAnswer(i))
		})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Error(err)
			break
		}
		writes.Add(1)
	}
	cancel()
	running.Wait()
	t.Logf("%d replies, %d queries passed, %d changes", hits.Load(), passed.Load(), writes.Load())
	if hits.Load() == 0 || passed.Load() == 0 {
		t.Error("not both")
	}
	assert.NoError(t, k.objects.Clients.Lookup(at, &client))
	replies := uint64(hits.Load())
	const size = 12 + 3 + 4 + 450
	assert.Equal(t, "bytes, denials, and those of the cluster domain", [3]uint64{size * replies, replies, replies},
		[3]uint64{client.Bytes, client.Denied, client.Searched})
}

// TestBarrier reads the instructions. On arm64 an addition that returns nothing is no barrier: a changed answer would be taken for
// the old one.
func TestBarrier(t *testing.T) {
	t.Parallel()
	spec, err := loadHits()
	assert.NoError(t, err)
	found := 0
	for _, ins := range spec.Programs[hitsProgAnswerHit].Instructions {
		if op := ins.OpCode.AtomicOp(); op != asm.InvalidAtomic && ins.Offset == int16(unsafe.Offsetof(hitsClient{}.Hits)) {
			found++
			assert.Equal(t, "addition to the hits of a client", asm.FetchAdd, op)
		}
	}
	assert.Equal(t, "additions to the hits of a client", 1, found)
}

// runReplaced runs the program, and reports whether it replied. It returns false after an error.
func runReplaced(t *testing.T, k *Responder, i int) (hit, ok bool) {
	t.Helper()
	const redirect = 7 // TC_ACT_REDIRECT
	query := replacedQuery(i)
	opts := ebpf.RunOptions{Data: query, DataOut: make([]byte, 2048)}
	action, err := k.objects.AnswerHit.Run(&opts)
	want := query
	if action == redirect {
		want = slices.Concat(query[54:61], replacedAnswer(i).Data[:450])
		opts.DataOut = opts.DataOut[54:]
	}
	if err != nil || !bytes.Equal(want, opts.DataOut) {
		t.Errorf("action %d, %v, reply %x, want %x", action, err, opts.DataOut, want)
		return false, false
	}
	return action == redirect, true
}
