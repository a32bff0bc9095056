// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Eventually polls condition, ever less often, until it holds, and returns how long that took. After limit it fails the
// test, with the details that the functions return.
func Eventually(tb testing.TB, limit time.Duration, what string, condition func() bool, details ...func() string) time.Duration {
	tb.Helper()
	began := time.Now()
	for !condition() {
		if time.Since(began) > limit {
			for _, detail := range details {
				tb.Log(detail())
			}
			tb.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(min(max(10*time.Millisecond, time.Since(began)/20), 500*time.Millisecond)) // a condition may start a program
	}
	return time.Since(began)
}

// Soak reports whether tests run for as long, and at the rates, that docs/reliability.md quotes, and demand its
// figures. Such a run takes hours on an otherwise idle machine. SOAK=1 enables it.
func Soak() bool { return os.Getenv("SOAK") != "" }

// OrdinaryOrSoak returns the duration, count or rate of a load for the present mode.
func OrdinaryOrSoak[T any](ordinary, soak T) T {
	if Soak() {
		return soak
	}
	return ordinary
}

// Figure records a measured value that docs/reliability.md may quote.
func Figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Attr("seen", fmt.Sprintf(format, args...))
}

// WriteFile replaces a file in one step and returns its path.
func WriteFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
