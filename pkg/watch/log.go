// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"log/slog"
)

// A demoted handler writes all that client-go says at debug level: what counts of it is said by this package, once. Where
// client-go takes a logger it gets this one. The few lines it writes without, a slow list and a certificate that
// changed, go where klog's global settings send them, which belong to the program.
type debugHandler struct {
	to slog.Handler
}

// Enabled implements [slog.Handler].
func (h debugHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelDebug && h.to.Enabled(ctx, slog.LevelDebug)
}

// Handle implements [slog.Handler].
func (h debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.to.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h debugHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugHandler{h.to.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h debugHandler) WithGroup(name string) slog.Handler { return debugHandler{h.to.WithGroup(name)} }
