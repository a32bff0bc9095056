// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/nodecache/node-cache/pkg/hint"
)

// Stdin is the path that stands for standard input, and stdinName its name in errors.
const (
	Stdin     = "-"
	stdinName = "standard input"
)

// A Checked is what [Check] has read.
type Checked struct {
	Config   Config    // the zero value if there are problems
	Name     string    // of the text, in errors
	Warnings []Problem // what is valid, but hardly meant; in the order of the text, those without a line last
}

// Check is Load for `node-cache check`, and reads stdin for the path [Stdin]; relative paths in that text begin at the current
// folder. Besides the problems it finds warnings. files, if not nil, reports what is wrong with the files that the
// configuration names. If files is nil, this machine is not the node: no file is read but that at path.
func Check(path string, stdin io.Reader, role Role, files func(*Config, *Findings)) (Checked, error) {
	d := newDecoder(role)
	if d.checking, d.files = true, files; files != nil {
		d.useThisMachine()
	}
	data, err := d.open(path, stdin)
	checked := Checked{Name: d.name}
	if err != nil {
		return checked, err
	}
	checked.Config, err = d.parse(data)
	sortProblems(d.warnings)
	checked.Warnings = d.warnings
	return checked, err
}

// LoadFrom is Load, and reads stdin for the path [Stdin]. Relative paths in that text begin at the current folder.
func LoadFrom(path string, stdin io.Reader, role Role) (Config, error) {
	d := newDecoder(role)
	d.useThisMachine()
	data, err := d.open(path, stdin)
	if err != nil {
		return Config{}, err
	}
	return d.parse(data)
}

// open reads the text at a path, and sets d's name and folder.
func (d *decoder) open(path string, stdin io.Reader) ([]byte, error) {
	if path != Stdin {
		d.name, d.folder = path, new(filepath.Dir(path))
		return readFile(path)
	}
	d.name, d.folder = stdinName, new(".")
	data, err := io.ReadAll(io.LimitReader(stdin, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration from %s: %w", stdinName, err)
	}
	if strings.TrimSpace(string(data)) == "" { // most likely the program before the pipe has failed
		return nil, &hint.Error{Err: errors.New(stdinName + " is empty"), Hint: "the command before the pipe may have failed; `kind: Config` stands for the built-in defaults"}
	}
	return data, nil
}

// checkEffects warns of values without the effect that was likely meant.
func checkEffects(d *decoder, c *Config) {
	if endpoint := c.Etcd.PlainEndpoint(); endpoint != "" {
		d.warn("etcd.passwordFile", "the network carries the password in plain text to "+endpoint, "write https:// endpoints", "etcd.endpoints")
	}
	if q := c.Log.Queries; q.Mode == QueriesSlow && q.Slow > c.Limits.Deadline {
		d.warn("log.queries", fmt.Sprintf("%s: no query takes longer than limits.deadline, which is %s", quote(q.String()), formatDuration(c.Limits.Deadline)),
			"set a shorter time, such as slow=500ms", "limits.deadline")
	}
}
