// SPDX-License-Identifier: Apache-2.0

package logging_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/logging"
)

// TestSet changes level and format: loggers that were derived before follow.
func TestSet(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := logging.New(&out, config.Log{Level: slog.LevelWarn, Format: "json"})
	log := slog.New(h).With("part", "zone").WithGroup("query").With("name", "a.test.")
	clock := regexp.MustCompile(`"?time"?[=:][^ ,]+[ ,]`)
	for _, step := range []struct {
		name string
		set  *config.Log
		want string
	}{
		{"below the level", nil, ""},
		{
			"a lower level", &config.Log{Level: slog.LevelInfo, Format: "json"},
			`{"level":"INFO","msg":"asked","part":"zone","query":{"name":"a.test.","took_seconds":0.0000015}}` + "\n",
		},
		{"text", &config.Log{Level: slog.LevelInfo, Format: "text"}, "level=INFO msg=asked part=zone query.name=a.test. query.took=1.5us\n"},
		{"a higher level", &config.Log{Level: slog.LevelError, Format: "text"}, ""},
	} {
		if step.set != nil {
			h.Set(*step.set)
		}
		log.Info("asked", "took", 1500*time.Nanosecond)
		assert.Equal(t, step.name, step.want, clock.ReplaceAllString(out.String(), ""))
		out.Reset()
	}
}
