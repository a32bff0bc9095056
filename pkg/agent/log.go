// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/config"
)

// A reloadableHandler is a log handler whose level and format a reload can change. All loggers derived from
// it follow the change.
type reloadableHandler struct {
	current *atomic.Pointer[currentHandler]
	derive  func(slog.Handler) slog.Handler // adds the attributes and groups of derived loggers
}

// handlers holds the handler in use. Each configuration has its own.
type currentHandler struct{ slog.Handler }

func newReloadableHandler(out io.Writer, cfg config.Log) *reloadableHandler {
	s := &reloadableHandler{current: new(atomic.Pointer[currentHandler]), derive: func(h slog.Handler) slog.Handler { return h }}
	s.set(out, cfg)
	return s
}

func (s *reloadableHandler) set(out io.Writer, cfg config.Log) {
	options := &slog.HandlerOptions{Level: cfg.Level}
	var h slog.Handler = slog.NewJSONHandler(out, options)
	if cfg.Format == "text" {
		h = slog.NewTextHandler(out, options)
	}
	s.current.Store(&currentHandler{h})
}

// Enabled implements [slog.Handler].
func (s *reloadableHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return s.current.Load().Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (s *reloadableHandler) Handle(ctx context.Context, r slog.Record) error {
	return s.derive(s.current.Load().Handler).Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (s *reloadableHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &reloadableHandler{current: s.current, derive: func(h slog.Handler) slog.Handler { return s.derive(h).WithAttrs(attrs) }}
}

// WithGroup implements [slog.Handler].
func (s *reloadableHandler) WithGroup(name string) slog.Handler {
	return &reloadableHandler{current: s.current, derive: func(h slog.Handler) slog.Handler { return s.derive(h).WithGroup(name) }}
}
