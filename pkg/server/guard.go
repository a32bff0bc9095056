// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// logPanic records a recovered panic: a defect of ours that one packet showed.
func logPanic(ctx context.Context, log *slog.Logger, where string, defect any) {
	log.ErrorContext(ctx, "recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
}
