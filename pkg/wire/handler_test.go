// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A flushed notes when it is flushed, and then does what the test says.
type flushed struct {
	name string
	log  *[]string
	then func()
}

// Flush implements wire.Flusher.
func (f *flushed) Flush() {
	*f.log = append(*f.log, f.name)
	if f.then != nil {
		f.then()
	}
}

func TestLater(t *testing.T) {
	t.Parallel()
	var log []string
	var batch wire.SendBatch
	add := func(name string, then func()) { batch.Add(&flushed{name, &log, then}) }
	for _, tt := range []struct {
		name string
		add  func()
		want []string
	}{
		{"nothing", func() {}, nil},
		{"one", func() { add("a", nil) }, []string{"a"}},
		{"in order", func() { add("a", nil); add("b", nil); add("c", nil) }, []string{"a", "b", "c"}},
		{"added meanwhile, again and again", func() {
			add("a", func() { add("c", func() { add("d", nil) }) })
			add("b", nil)
		}, []string{"a", "b", "c", "d"}},
		{"nothing of the batches before", func() {}, nil},
	} {
		log = nil
		tt.add()
		if len(log) > 0 {
			t.Errorf("%s: %q flushed before the end", tt.name, log)
		}
		batch.Flush()
		assert.Same(t, tt.name+": flushed", tt.want, log)
	}
}

// TestLaterPanic has a flusher break: those behind it are flushed by the next call,
// those before it not again.
func TestLaterPanic(t *testing.T) {
	t.Parallel()
	var log []string
	var batch wire.SendBatch
	batch.Add(&flushed{"before", &log, nil})
	batch.Add(&flushed{"broken", &log, func() { panic("asked to") }})
	batch.Add(&flushed{"behind", &log, nil})
	func() {
		defer func() { _ = recover() }()
		batch.Flush()
		t.Error("the panic was kept from the caller")
	}()
	batch.Flush()
	assert.Same(t, "flushed", []string{"before", "broken", "behind"}, log)
}

// TestLaterAllocations: a batch costs nothing once a larger one was there.
func TestLaterAllocations(t *testing.T) {
	var log []string
	var batch wire.SendBatch
	f := &flushed{"f", &log, nil}
	if got := testing.AllocsPerRun(1000, func() {
		log = log[:0]
		for range 8 {
			batch.Add(f)
		}
		batch.Flush()
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}
