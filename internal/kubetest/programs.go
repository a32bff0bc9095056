// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Programs are the paths of the built programs.
type Programs struct {
	Kube    string // kube-apiserver, kube-controller-manager and kube-proxy: the first argument chooses
	Etcd    string
	CoreDNS string
}

// Build makes the programs from the modules test/kube, test/etcd and test/coredns of the repository that holds the
// working directory. It keeps them in the user's cache folder under a name made of everything they depend on, so
// that a second call finds them there. With an empty Go build cache it takes several minutes and fetches modules.
// Processes that build at the same time wait for each other.
func Build(ctx context.Context) (Programs, error) {
	root, err := repositoryRoot()
	if err != nil {
		return Programs{}, err
	}
	b := builder{root: root}
	if b.dir, err = cacheFolder("programs"); err != nil {
		return Programs{}, err
	}
	if b.toolchain, err = output(ctx, root, "go", "env", "GOVERSION", "GOOS", "GOARCH"); err != nil {
		return Programs{}, fmt.Errorf("asking the go command for its version: %w", err)
	}
	var p Programs
	for _, program := range []struct {
		name string
		path *string
	}{{"etcd", &p.Etcd}, {"coredns", &p.CoreDNS}, {"kube", &p.Kube}} {
		if *program.path, err = b.program(ctx, program.name); err != nil {
			return Programs{}, fmt.Errorf("building %s: %w", program.name, err)
		}
	}
	return p, nil
}

// A builder makes programs out of the modules in one repository.
type builder struct {
	root      string // the repository
	dir       string // where the programs go
	toolchain string // what else decides how a program turns out
}

// program returns the path of the program made from the module test/name, built if it is not there.
func (b builder) program(ctx context.Context, name string) (string, error) {
	module := filepath.Join(b.root, "test", name)
	sum, err := b.fingerprint(module)
	if err != nil {
		return "", err
	}
	return once(ctx, b.dir, name, sum, func(path string) error { return compile(ctx, module, path) })
}

// fingerprint sums up the module's files and the toolchain: go.sum stands for every dependency.
func (b builder) fingerprint(module string) (string, error) {
	files, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", fmt.Errorf("listing a module: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("listing a module: no Go files in %s", module)
	}
	all := fmt.Appendf(nil, "%s\n%q\n", b.toolchain, buildArgs(""))
	for _, file := range append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading a module: %w", err)
		}
		all = fmt.Appendf(all, "%s %d\n%s", filepath.Base(file), len(text), text)
	}
	return fmt.Sprintf("%x", sha256.Sum256(all))[:16], nil
}

// compile builds the module into a file.
func compile(ctx context.Context, module, path string) error {
	if _, err := output(ctx, module, "go", buildArgs(path)...); err != nil {
		return fmt.Errorf("running the go command: %w", err)
	}
	return nil
}

func buildArgs(out string) []string {
	return []string{"build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", out, "."}
}

// output runs a command in dir and returns its standard output. The error holds the end of what it wrote to
// standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s in %s: %w\n%s", name, strings.Join(args, " "), dir, err, lastLines(stderr.String(), 20))
	}
	return string(out), nil
}

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimSpace(text)))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
