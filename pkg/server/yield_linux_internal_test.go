// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"sync"
	"testing"
)

// Sessions let the network be looked at after much work, and only then.
func TestYield(t *testing.T) {
	t.Parallel()
	var y yielder
	y.open()
	defer y.close()
	for range 10 {
		y.addWork(yieldInterval / 2)
		y.yield()
	}
	var all sync.WaitGroup
	for range 100 {
		y.addWork(yieldInterval)
		all.Go(y.yield)
	}
	all.Wait()
	y.addWork(yieldInterval)
	y.yield()
	var count [8]byte
	if _, err := y.file.Read(count[:]); err != nil {
		t.Fatal(err)
	}
	if n := binary.NativeEndian.Uint64(count[:]); n < 6 || n > 106 {
		t.Errorf("%d looks at the network, want 6 to 106", n)
	}
}
