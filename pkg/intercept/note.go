// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
)

// A note is what went wrong last.
type note struct {
	mu       sync.Mutex // guards what follows
	problem  string     // of the last pass over the rules
	newOwner string     // who has the rules since this keeper stood down
}

func (n *note) look() (problem, newOwner string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problem, n.newOwner
}

// setProblem returns what it replaces.
func (n *note) setProblem(problem string) (was string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, n.problem = n.problem, problem
	return was
}

func (n *note) setStoodDown(newOwner string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newOwner = newOwner
}

func (n *note) stoodDown() bool {
	_, newOwner := n.look()
	return newOwner != ""
}

// noteRules counts a pass over the rules that failed, and logs it unless the one
// before failed in the same words.
func (k *Keeper) noteRules(ctx context.Context, err error) {
	problem := ""
	if err != nil {
		k.count.applyFailures.Add(1)
		problem = err.Error()
	}
	switch was := k.note.setProblem(problem); {
	case was == problem:
	case err != nil:
		k.log.WarnContext(ctx, "interception rules not in place", "backend", k.cfg.Backend.String(), "error", err)
	default:
		k.log.InfoContext(ctx, "interception rules in place again", "backend", k.cfg.Backend.String())
	}
}

// guard calls fn and makes an error of its panic. The agent answers without rules
// too; ending it would take the answers as well.
func (k *Keeper) guard(ctx context.Context, what string, fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			k.count.panics.Add(1)
			k.log.ErrorContext(ctx, "recovered from a panic", "while", what, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("recovered from a panic: %v", r)
		}
	}()
	return fn()
}
