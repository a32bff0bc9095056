// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		events    string
		want      bool
		wantTally string
		wantOut   []string // parts of the report
	}{
		{
			name: "a passing test",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"m/p"}`,
			want: true, wantTally: "1 0 0\n",
		},
		{
			name:   "no test at all is a failure",
			events: `{"Action":"skip","Package":"m/p"}`,
			want:   false, wantTally: "0 0 0\n",
		},
		{
			name: "skips alone are a failure",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"output","Package":"m/p","Test":"TestA","Output":"    a_test.go:7: no nsd: apt-get install nsd\n"}
{"Action":"output","Package":"m/p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p"}`,
			want: false, wantTally: "0 0 1\n", wantOut: []string{"  skipped p.TestA: no nsd: apt-get install nsd\n"},
		},
		{
			name: "a failed subtest counts once, with its parent's output",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"output","Package":"m/p","Test":"TestA","Output":"the server's log\n"}
{"Action":"run","Package":"m/p","Test":"TestA/x"}
{"Action":"output","Package":"m/p","Test":"TestA/x","Output":"want 1\n"}
{"Action":"fail","Package":"m/p","Test":"TestA/x"}
{"Action":"run","Package":"m/p","Test":"TestA/y"}
{"Action":"pass","Package":"m/p","Test":"TestA/y"}
{"Action":"fail","Package":"m/p","Test":"TestA"}
{"Action":"fail","Package":"m/p"}`,
			want: false, wantTally: "1 1 0\n", wantOut: []string{"--- failed: p.TestA/x\nthe server's log\nwant 1\n"},
		},
		{
			name: "a parent that fails by itself counts beside its subtests",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"run","Package":"m/p","Test":"TestA/x"}
{"Action":"pass","Package":"m/p","Test":"TestA/x"}
{"Action":"fail","Package":"m/p","Test":"TestA"}
{"Action":"fail","Package":"m/p"}`,
			want: false, wantTally: "1 1 0\n", wantOut: []string{"--- failed: p.TestA\n"},
		},
		{
			name: "a package that does not build",
			events: `{"ImportPath":"m/p [m/p.test]","Action":"build-output","Output":"p.go:3: undefined: x\n"}
{"ImportPath":"m/p [m/p.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/p","FailedBuild":"m/p [m/p.test]"}`,
			want: false, wantTally: "0 1 0\n", wantOut: []string{"--- failed: m/p\np.go:3: undefined: x\n"},
		},
		{
			name: "a test cut off by the time limit",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"output","Package":"m/p","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"m/p"}`,
			want: false, wantTally: "0 1 0\n", wantOut: []string{"--- failed: p.TestA\npanic: test timed out\n"},
		},
		{
			name: "a process that dies in the output of a test that was over",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p","Test":"TestA","Elapsed":0.1}
{"Action":"run","Package":"m/p","Test":"TestB"}
{"Action":"output","Package":"m/p","Test":"TestA","Output":"panic: too late\n"}
{"Action":"output","Package":"m/p","Output":"FAIL\n"}
{"Action":"fail","Package":"m/p"}`,
			want: false, wantTally: "1 1 0\n", wantOut: []string{"--- failed: p.TestB\nFAIL\npanic: too late\n"},
		},
		{
			name: "a benchmark ends without an event",
			events: `{"Action":"run","Package":"m/p","Test":"BenchmarkA"}
{"Action":"output","Package":"m/p","Test":"BenchmarkA","Output":"BenchmarkA 1 2 ns/op\n"}
{"Action":"pass","Package":"m/p"}`,
			want: true, wantTally: "1 0 0\n",
		},
		{
			name: "fuzz targets end their package once each, and a failure stays",
			events: `{"Action":"run","Package":"m/p","Test":"FuzzA"}
{"Action":"fail","Package":"m/p","Test":"FuzzA"}
{"Action":"fail","Package":"m/p"}
{"Action":"run","Package":"m/p","Test":"FuzzB"}
{"Action":"pass","Package":"m/p","Test":"FuzzB","Elapsed":5.5}
{"Action":"pass","Package":"m/p"}`,
			want: false, wantTally: "1 1 0\n", wantOut: []string{"--- failed: p.FuzzA\n", "  slow    p.FuzzB: 5.5 s\n"},
		},
		{
			name: "a figure is shown though the test passed",
			events: `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"attr","Package":"m/p","Test":"TestA","Key":"lost","Value":"0 of 7"}
{"Action":"pass","Package":"m/p","Test":"TestA"}`,
			want: true, wantTally: "1 0 0\n", wantOut: []string{"  figure  p.TestA: lost 0 of 7\n"},
		},
		{
			name: "a line that is no event is shown",
			events: `signal: killed
{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p","Test":"TestA"}`,
			want: true, wantTally: "1 0 0\n", wantOut: []string{"signal: killed\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "tally")
			var stdout bytes.Buffer
			got, err := run([]string{file}, strings.NewReader(tt.events), &stdout)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("run() = %t, want %t", got, tt.want)
			}
			tally, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.wantTally, string(tally)); diff != "" {
				t.Errorf("tally (-want +got):\n%s", diff)
			}
			for _, part := range tt.wantOut {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("report lacks %q:\n%s", part, &stdout)
				}
			}
		})
	}
}
