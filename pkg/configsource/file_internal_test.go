// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestFileCheck has the content of the file at each check, what is reported of it, and when the next check comes.
func TestFileCheck(t *testing.T) {
	t.Parallel()
	const missing = "missing"
	type result struct {
		Port  uint16 // of the reported configuration; 0: an error, or nothing is reported
		Err   string // kind of the reported error
		Calls int
		Next  time.Duration
	}
	for _, tt := range []struct {
		name     string
		contents []string // at each check; before the first: listen: {port: 1}
		want     []result
	}{
		{
			name: "a change is reported once", contents: []string{"listen: {port: 2}", "listen: {port: 2}", "listen: {port: 1}"},
			want: []result{{Port: 2, Calls: 1}, {}, {Port: 1, Calls: 1}},
		},
		{name: "the same content written again is not reported", contents: []string{"listen: {port: 1}"}, want: []result{{}}},
		{
			name: "a missing file is reported when it is missing again", contents: []string{missing, missing, missing},
			want: []result{{Next: time.Second}, {Err: "missing", Calls: 1}, {}},
		},
		{
			name: "a file that is back at the next check is not reported", contents: []string{missing, "listen: {port: 1}", missing},
			want: []result{{Next: time.Second}, {}, {Next: time.Second}},
		},
		{
			name: "an empty file that is filled at the next check is reported once", contents: []string{"", "listen: {port: 2}"},
			want: []result{{Next: time.Second}, {Port: 2, Calls: 1}},
		},
		{
			name: "an empty file is the defaults when it is empty again", contents: []string{"", ""},
			want: []result{{Next: time.Second}, {Port: 1053, Calls: 1}},
		},
		{
			name: "a bad file is reported once", contents: []string{"listen: {port: 0}", "listen: {port: 0}"},
			want: []result{{Err: "bad", Calls: 1}, {}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config.yaml")
			write := func(content string) {
				err := os.WriteFile(path, []byte(content), 0o600)
				if content == missing {
					err = os.Remove(path)
				}
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
			write("listen: {port: 1}")
			var now result
			f := file{base: &base{cfg: Config{File: path, Role: config.Resolver}}, report: func(c content) {
				now.Calls++
				now.Port = c.config.Listen.Port
				switch {
				case errors.Is(c.err, fs.ErrNotExist):
					now.Err = "missing"
				case c.err != nil:
					now.Err = "bad"
				case c.config.Cluster.Resolver != config.ResolverLocal:
					now.Err = "of another role"
				}
			}}
			if _, err := f.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []result
			for _, content := range tt.contents {
				write(content)
				now = result{}
				now.Next = f.check(true)
				got = append(got, now)
			}
			assert.Same(t, "checks", tt.want, got)
		})
	}
}
