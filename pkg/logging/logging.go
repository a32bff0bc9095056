// SPDX-License-Identifier: Apache-2.0

// Package logging is the agent's log: its level and format change with the configuration.
package logging

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/config"
)

// A Handler is a log handler whose level and format can change. All loggers derived from it follow the change.
type Handler struct {
	out     io.Writer
	mu      *sync.Mutex                     // orders the records of an old and a new handler: each has a lock of its own
	current *atomic.Pointer[slog.Handler]   // handler of the current configuration
	derive  func(slog.Handler) slog.Handler // adds the attributes and groups of derived loggers
}

// New returns a handler that writes to out.
func New(out io.Writer, cfg config.Log) *Handler {
	h := &Handler{
		out: out, mu: new(sync.Mutex), current: new(atomic.Pointer[slog.Handler]),
		derive: func(base slog.Handler) slog.Handler { return base },
	}
	h.Set(cfg)
	return h
}

// Set changes the level and the format.
func (h *Handler) Set(cfg config.Log) {
	var next slog.Handler = slog.NewJSONHandler(h.out, JSONOptions(cfg.Level))
	if cfg.Format == "text" {
		next = slog.NewTextHandler(h.out, textOptions(cfg.Level))
	}
	h.current.Store(&next)
}

// JSONOptions are the options of handlers that write JSON: a duration is a number of seconds, and its key ends in _seconds.
func JSONOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
		}
		return a
	}}
}

// textOptions are the options of handlers that write text: a duration has its unit, in ASCII.
func textOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(strings.Replace(a.Value.Duration().String(), "µ", "u", 1))
		}
		return a
	}}
}

// Enabled implements [slog.Handler].
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return (*h.current.Load()).Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	derived := h.derive(*h.current.Load())
	h.mu.Lock()
	defer h.mu.Unlock()
	return derived.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.derive = func(base slog.Handler) slog.Handler { return h.derive(base).WithAttrs(attrs) }
	return &derived
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	derived := *h
	derived.derive = func(base slog.Handler) slog.Handler { return h.derive(base).WithGroup(name) }
	return &derived
}
