// SPDX-License-Identifier: Apache-2.0

package journeys_test

import (
	"bufio"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const module = "github.com/nodecache/node-cache/"

// functions are the functions that ran, by file.
type functions map[string][]string

// TestJourneys compares each journey of the page with the functions that run. A listed function must run in one of three
// recordings. A file that is not listed must not have a function that runs in all three, and not while the agent is idle.
func TestJourneys(t *testing.T) {
	t.Parallel()
	ran := record(t)
	for heading, journey := range map[string]struct {
		name, idle string
		files      int // the most that it may cross
	}{
		"A hit over UDP":                     {"hit", "idle", 12},
		"A miss, asked of a resolver by TCP": {"miss", "idle", 30},
		"A reload":                           {"reload", "idle", 33},
		"An event of the API server":         {"event", "calm", 25},
	} {
		page := listed(t, "../../docs/journeys.md", heading)
		first, second, third := ran[journey.name+"0"], ran[journey.name+"1"], ran[journey.name+"2"]
		for file, names := range page {
			for _, name := range names {
				if !slices.Contains(slices.Concat(first[file], second[file], third[file]), name) {
					t.Errorf("%s: %s of %s does not run", heading, name, file)
				}
			}
		}
		for file, names := range first {
			own := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return slices.Contains(ran[journey.idle][file], name) || !slices.Contains(second[file], name) || !slices.Contains(third[file], name)
			})
			if page[file] == nil && len(own) > 0 {
				t.Errorf("%s: it crosses %s, which is not listed: %s", heading, file, strings.Join(own, ", "))
			}
		}
		t.Logf("%s: %d files", heading, len(page))
		if len(page) > journey.files {
			t.Errorf("%s: it crosses %d files, want at most %d: %q", heading, len(page), journey.files, slices.Sorted(maps.Keys(page)))
		}
	}
}

// TestKernelJourney finds each function of the journey in its file, and each function of the program in the journey.
func TestKernelJourney(t *testing.T) {
	t.Parallel()
	page := listed(t, "../../docs/journeys.md", "A hit in the kernel")
	for file, names := range page {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		assert.NoError(t, err)
		for _, name := range names {
			head := `\b` + name + `\(`
			if receiver, method, isMethod := strings.Cut(name, "."); isMethod {
				head = `(?m)^func \(\w* ?\*?` + receiver + `\) ` + method + `\(`
			}
			if !regexp.MustCompile(head).Match(text) {
				t.Errorf("%s has no %s", file, name)
			}
		}
		if strings.HasSuffix(file, ".c") {
			for _, match := range regexp.MustCompile(`(?m)^(?:static [^(]*?|int )(\w+)\(`).FindAllSubmatch(text, -1) {
				if !slices.Contains(names, string(match[1])) {
					t.Errorf("the page does not have %s of %s", match[1], file)
				}
			}
		}
	}
}

// record runs the recorder, and returns what ran in each of its parts.
func record(t *testing.T) map[string]functions {
	t.Helper()
	folder := t.TempDir()
	program := filepath.Join(folder, "recorder")
	run(t, exec.CommandContext(t.Context(), "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"pkg/...,"+module+"test/journeys/recorder",
		"-o", program, "./recorder"))
	recorder := exec.CommandContext(t.Context(), program, proctest.FreeAddr(t).String(), folder)
	recorder.Env = append(os.Environ(), "GOCOVERDIR="+folder)
	run(t, recorder)
	ran := map[string]functions{}
	parts, err := filepath.Glob(filepath.Join(folder, "*", "covmeta.*"))
	if err != nil || len(parts) != 2+3*4 {
		t.Fatalf("recordings: %v, %v", parts, err)
	}
	for _, part := range parts {
		part = filepath.Base(filepath.Dir(part))
		ran[part] = functions{}
		// A line: PACKAGE/FILE:LINE: FUNCTION PERCENT
		for line := range strings.Lines(run(t, exec.CommandContext(t.Context(), "go", "tool", "covdata", "func", "-i="+filepath.Join(folder, part)))) {
			fields := strings.Fields(line)
			file, _, _ := strings.Cut(strings.TrimPrefix(fields[0], module), ":")
			if len(fields) == 3 && fields[2] != "0.0%" && strings.HasPrefix(file, "pkg/") && !strings.Contains(file, "watchtest/") {
				ran[part][file] = append(ran[part][file], strings.TrimPrefix(fields[1], "*"))
			}
		}
	}
	return ran
}

// run returns what a command prints.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// listed returns the functions that the page lists below a heading. A row has the file in its first cell, and the functions in
// its second one.
func listed(t *testing.T, page, heading string) functions {
	t.Helper()
	file, err := os.Open(page)
	assert.NoError(t, err)
	defer func() { _ = file.Close() }()
	row := regexp.MustCompile("^\\| `([^`]+\\.(?:go|c))` \\|(.*)\\|$")
	name := regexp.MustCompile("`([^`]+)`")
	list, below := functions{}, false
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, isHeading := strings.CutPrefix(lines.Text(), "## "); isHeading {
			below = text == heading
		}
		if cells := row.FindStringSubmatch(lines.Text()); below && cells != nil {
			for _, match := range name.FindAllStringSubmatch(cells[2], -1) {
				list[cells[1]] = append(list[cells[1]], match[1])
			}
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s has no rows below %q", page, heading)
	}
	return list
}
