// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds a file. A ConfigMap holds no more.
const maxBytes = 1 << 20

// Parse reads the text of a configuration. The error is an [*Error] with every
// problem of it. Paths that are relative in the text stay so.
func Parse(data []byte, role Role) (Config, error) {
	return parseFile("", data, role)
}

// Load reads the configuration in a file. Relative paths in it begin at its
// folder, and files of certificates must be there. The error is an [*Error], or
// wraps the one of the operating system when the file cannot be read.
func Load(path string, role Role) (Config, error) {
	data, err := readFile(path)
	if err != nil {
		return Config{}, err
	}
	return parseFile(path, data, role)
}

// ParseAs is Load for a text that is in no file: name stands for the path in errors, and relative paths begin at folder.
func ParseAs(name, folder string, data []byte, role Role) (Config, error) {
	c, err := parseFile(filepath.Join(folder, "-"), data, role)
	if bad := (*Error)(nil); errors.As(err, &bad) {
		bad.Path = name
	}
	return c, err
}

// Normalize returns c as a file would give it in a role: names in lower case and absolute, lists in order. The error is
// an [*Error] with the problems of what no file could give; there is no configuration beside it.
func Normalize(c Config, role Role) (Config, error) {
	return parseWritten(writeConfig(&c), role)
}

// ParseZone returns a zone as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseZone(text string) (string, error) {
	name, p := parseZone(text)
	return name, p.of(text)
}

// ParseTarget returns an upstream as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseTarget(text string) (Target, error) {
	t, p := parseTarget(text)
	return t, p.of(text)
}

// parseWritten is Parse for a text that this program has written: lines in it mean nothing to the user.
func parseWritten(text []byte, role Role) (Config, error) {
	c, err := Parse(text, role)
	if bad := (*Error)(nil); errors.As(err, &bad) {
		for i := range bad.Problems {
			bad.Problems[i].Line, bad.Problems[i].Column = 0, 0
		}
	}
	return c, err
}

// parseFile is Parse, with the path of the file for the error.
func parseFile(path string, data []byte, role Role) (Config, error) {
	d := &decoder{set: map[string]position{}}
	doc := document{Config: Default(role)}
	c := &doc.Config
	if root, ok := d.readDocument(data); ok {
		if root != nil && !isNull(root) {
			d.decode("", root, reflect.ValueOf(&doc).Elem(), &field{})
		}
		c.inherit(d)
		checkRules(d, c, role)
		if path != "" {
			if err := resolveLocations(c, path); err != nil {
				return Config{}, err
			}
			checkFiles(d, c)
		}
	}
	if err := d.err(path); err != nil {
		return Config{}, err
	}
	return *c, nil
}

// err returns the problems as an error, nil if there are none.
func (d *decoder) err(path string) error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		if a.Line == 0 || b.Line == 0 {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if d.more > 0 {
		d.problems = append(d.problems, Problem{What: fmt.Sprintf("%d more problems", d.more)})
	}
	return &Error{Path: path, Problems: d.problems}
}

// readFile reads at most one byte more than a configuration may have.
func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return data, nil
}

// readDocument returns the root of the only document in a text, nil if it is empty, and whether there is something to
// decode.
func (d *decoder) readDocument(data []byte) (*yaml.Node, bool) {
	if len(data) > maxBytes {
		d.addAt(position{}, Problem{What: "larger than " + formatSize(maxBytes)})
		return nil, false
	}
	if !d.checkText(data) {
		return nil, false
	}
	var first, second yaml.Node
	reader := yaml.NewDecoder(bytes.NewReader(data))
	err := reader.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, true
	}
	next := err
	if err == nil {
		next = reader.Decode(&second)
	}
	const hint = "one file holds one configuration"
	switch {
	case err != nil:
		d.addSyntax(data, err, "")
		return nil, false
	case next == nil && !isNull(second.Content[0]): // an empty second document does no harm
		d.addAt(positionOf(second.Content[0]), Problem{What: "a second document", Hint: hint})
		return nil, false
	case next != nil && !errors.Is(next, io.EOF):
		d.addSyntax(data, next, hint)
		return nil, false
	}
	return first.Content[0], true
}

// checkText reports bytes that are no text, and whether there are none. YAML may be UTF-16 as well, which other
// programs do not read.
func (d *decoder) checkText(data []byte) bool {
	for i, c := range string(data) {
		what := ""
		switch {
		case c == utf8.RuneError && !bytes.HasPrefix(data[i:], []byte(string(utf8.RuneError))):
			what = "not UTF-8 text"
		case c < ' ' && c != '\t' && c != '\n' && c != '\r', c >= 0x7F && c <= 0x9F && c != 0x85, c == 0xFFFE, c == 0xFFFF:
			what = fmt.Sprintf("control character %U", c)
		default:
			continue
		}
		d.addAt(positionAt(data, i), Problem{What: what})
		return false
	}
	return true
}

// maxSearched bounds the texts whose syntax errors are searched for, which takes up to 17 parses. All of them together cost
// about as much as one parse of the largest text.
const maxSearched = 64 << 10

// addSyntax reports that a text is no YAML. The library's errors are texts with lines that may be wrong by one, so the
// place is found by other means: it is the end of the shortest beginning of the text that gives the same error. A text
// larger than maxSearched has the library's line. An empty hint is chosen by the line.
func (d *decoder) addSyntax(data []byte, err error, hint string) {
	head := regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`).FindStringSubmatch(err.Error())
	what := "YAML: " + strings.TrimPrefix(err.Error(), head[0])
	if len(data) > maxSearched {
		line, _ := strconv.Atoi(head[1]) // 0 without a line: unknown
		d.addAt(position{line, min(line, 1)}, Problem{What: what, Hint: cmp.Or(hint, "the line may be wrong by one")})
		return
	}
	fails := func(length int) bool {
		reader := yaml.NewDecoder(bytes.NewReader(data[:length]))
		for {
			var n yaml.Node
			if got := reader.Decode(&n); got != nil {
				return got.Error() == err.Error()
			}
		}
	}
	length := sort.Search(len(data), fails)
	end := max(0, length-1)
	at := positionAt(data, end)
	line := data[bytes.LastIndexByte(data[:end], '\n')+1:]
	line, _, _ = bytes.Cut(line, []byte("\n"))
	if hint == "" {
		hint = syntaxHint(string(line), string(data[end:min(length, len(data))]))
	}
	d.addAt(at, Problem{What: what, Hint: hint})
}

// syntaxHint returns what to look for in a line that is no YAML, from the character that is in the way on.
func syntaxHint(line, found string) string {
	text := strings.TrimLeft(line, " ")
	quotes := strings.Count(line, `"`)%2 == 1 || strings.Count(line, "'")%2 == 1
	switch {
	case strings.HasPrefix(text, "\t"):
		return "indent with spaces, not with tabs"
	case found == "@" || found == "`":
		return "quote a value that begins with @ or `"
	case quotes:
		return "close the quotes"
	case found == ":":
		return "quote a value that holds a colon and a space, and check the indentation"
	}
	return "check the indentation and the brackets, and quote an IPv6 address"
}

// positionAt returns the line and the column of a byte, by the line breaks of YAML 1.1.
func positionAt(data []byte, offset int) position {
	text := strings.TrimPrefix(strings.ReplaceAll(string(data[:offset]), "\r\n", "\n"), "\uFEFF")
	breaks := func(c rune) bool { return c == '\n' || c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029 }
	at := position{1, 1}
	for _, c := range text {
		if at.column++; breaks(c) {
			at = position{at.line + 1, 1}
		}
	}
	return at
}

// inherit gives each route the TTLs of the cache that the file does not set for it.
func (c *Config) inherit(d *decoder) {
	for i := range c.Forward {
		r := &c.Forward[i]
		for _, from := range []struct {
			key        string
			dst, cache *time.Duration
		}{
			{"minTTL", &r.MinTTL, &c.Cache.MinTTL},
			{"maxTTL", &r.MaxTTL, &c.Cache.MaxTTL},
			{"negativeTTL", &r.NegativeTTL, &c.Cache.NegativeTTL},
		} {
			if !d.isSet(fmt.Sprintf("forward[%d].%s", i, from.key)) {
				*from.dst = *from.cache
			}
		}
	}
}
