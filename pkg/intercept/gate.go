// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"sync"
)

// A gate lets one in at a time, until it is closed for good. It is what makes sure
// that nothing is renewed after a release: a context that has ended does not stop
// who has just looked at it.
type gate struct {
	once   sync.Once
	closed chan struct{}
	inside chan struct{} // of one place: taken by who is inside
}

func newGate() *gate {
	return &gate{closed: make(chan struct{}), inside: make(chan struct{}, 1)}
}

// enter waits for its turn and says whether there still was one. Then leave must follow.
func (g *gate) enter() bool {
	select {
	case g.inside <- struct{}{}:
	case <-g.closed:
		return false
	}
	if g.isClosed() { // both were there to be chosen from
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() { <-g.inside }

// close lets nobody in any more. Who is inside may still be.
func (g *gate) close() { g.once.Do(func() { close(g.closed) }) }

func (g *gate) isClosed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// occupied says whether somebody is inside the closed gate still.
func (g *gate) occupied() bool { return len(g.inside) > 0 }

// empty waits until nobody is inside the closed gate.
func (g *gate) empty(ctx context.Context) error {
	select {
	case g.inside <- struct{}{}:
		g.leave()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bound returns a context that ends with ctx or when the gate is closed. The group
// joins what that takes.
func (g *gate) bound(ctx context.Context, group *sync.WaitGroup) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	group.Go(func() {
		defer cancel()
		select {
		case <-g.closed:
		case <-ctx.Done():
		}
	})
	return ctx
}
