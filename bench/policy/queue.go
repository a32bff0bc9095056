// SPDX-License-Identifier: Apache-2.0

package main

// A queue is first in, first out, over a ring that grows. The zero value is empty.
type queue[T any] struct {
	ring  []T
	front int
	count int
}

func (q *queue[T]) push(v T) {
	if q.count == len(q.ring) {
		grown := make([]T, max(16, 2*q.count))
		for i := range q.count {
			grown[i] = q.ring[(q.front+i)%len(q.ring)]
		}
		q.ring, q.front = grown, 0
	}
	q.ring[(q.front+q.count)%len(q.ring)] = v
	q.count++
}

// first is the oldest value. The queue must not be empty.
func (q *queue[T]) first() T { return q.ring[q.front] }

// pop takes the oldest value out. The queue must not be empty.
func (q *queue[T]) pop() T {
	v := q.ring[q.front]
	q.front = (q.front + 1) % len(q.ring)
	q.count--
	return v
}
