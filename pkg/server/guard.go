// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// flushBroken lets go what a worker put off before it panicked: others' queries may be
// among it. What panics there once more is known already.
func flushBroken(worker Worker) {
	defer func() { _ = recover() }()
	worker.Flush(time.Now())
}

// logPanic records a recovered panic: a defect of ours that one packet showed.
func logPanic(ctx context.Context, log *slog.Logger, where string, defect any) {
	log.ErrorContext(ctx, "recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
}
