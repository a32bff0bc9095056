// SPDX-License-Identifier: Apache-2.0

package wire

// A Flusher holds something back until the batch that it belongs to is done.
type Flusher interface {
	// Flush lets it go. It may be called from any goroutine, and when there is nothing to let go.
	Flush()
}

// Later is what is put off to the end of a batch, so that one system call does for many: queries to an upstream,
// replies through a socket. It belongs to one goroutine. The zero value is ready for use.
type SendBatch struct {
	due  []Flusher
	next int // the first of due that is not flushed yet
}

// Add has f flushed at the end of the batch. It is for whoever just put the first thing into f; what others put there
// before the flush goes along.
func (l *SendBatch) Add(f Flusher) { l.due = append(l.due, f) }

// Flush ends the batch: it flushes what was added, in that order, and what is added meanwhile. If one of them panics,
// the next Flush goes on behind it.
func (l *SendBatch) Flush() {
	for l.next < len(l.due) {
		l.next++
		l.due[l.next-1].Flush()
	}
	clear(l.due)
	l.due, l.next = l.due[:0], 0
}
