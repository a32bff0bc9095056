// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/config"
)

// A switchable is a log handler whose level and format a reload may change
// under all the loggers made from it.
type switchable struct {
	current *atomic.Pointer[handlers]
	derive  func(slog.Handler) slog.Handler // attributes and groups added since
}

// handlers is the handler in use; a new one for each configuration.
type handlers struct{ slog.Handler }

func newSwitchable(out io.Writer, cfg config.Log) *switchable {
	s := &switchable{current: new(atomic.Pointer[handlers]), derive: func(h slog.Handler) slog.Handler { return h }}
	s.use(out, cfg)
	return s
}

func (s *switchable) use(out io.Writer, cfg config.Log) {
	options := &slog.HandlerOptions{Level: cfg.Level}
	var h slog.Handler = slog.NewJSONHandler(out, options)
	if cfg.Format == "text" {
		h = slog.NewTextHandler(out, options)
	}
	s.current.Store(&handlers{h})
}

// Enabled implements [slog.Handler].
func (s *switchable) Enabled(ctx context.Context, level slog.Level) bool {
	return s.current.Load().Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (s *switchable) Handle(ctx context.Context, r slog.Record) error {
	return s.derive(s.current.Load().Handler).Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (s *switchable) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &switchable{current: s.current, derive: func(h slog.Handler) slog.Handler { return s.derive(h).WithAttrs(attrs) }}
}

// WithGroup implements [slog.Handler].
func (s *switchable) WithGroup(name string) slog.Handler {
	return &switchable{current: s.current, derive: func(h slog.Handler) slog.Handler { return s.derive(h).WithGroup(name) }}
}
