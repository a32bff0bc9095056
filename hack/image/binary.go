// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// binary is a program for one platform.
type binary struct {
	program, platform string // the folder below cmd, and as "linux/amd64"

	data    []byte
	info    *buildinfo.BuildInfo
	goroot  string
	folders map[string]string // where the sources of a module are, by its path
	roots   debug.Module      // the certificates
}

// compile builds a program as `make` does.
func compile(ctx context.Context, o *options, platform, program string) (*binary, error) {
	folder, err := os.MkdirTemp("", "node-cache-image-")
	if err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	file := filepath.Join(folder, program)
	ldflags := "-s -w -X main.version=" + o.version
	if program == "node-cache" {
		ldflags += " -E main.entry" // cmd/node-cache/entry_linux.go
	}
	if _, err := goCommand(ctx, o.root, platform, "build", "-buildvcs=auto", "-trimpath", "-ldflags", ldflags, "-o", file, "./cmd/"+program); err != nil {
		return nil, err
	}
	b := &binary{program: program, platform: platform, folders: map[string]string{}}
	if b.data, err = os.ReadFile(file); err != nil {
		return nil, fmt.Errorf("reading the binary: %w", err)
	}
	if b.info, err = buildinfo.Read(bytes.NewReader(b.data)); err != nil {
		return nil, fmt.Errorf("reading what the binary is built from: %w", err)
	}
	return b, b.locate(ctx, o)
}

// locate finds the folders that hold the licences.
func (b *binary) locate(ctx context.Context, o *options) error {
	root, err := goCommand(ctx, o.root, b.platform, "env", "GOROOT")
	if err != nil {
		return err
	}
	b.goroot = strings.TrimSpace(string(root))
	modules, err := goCommand(ctx, o.root, b.platform, "list", "-buildvcs=false", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}{{end}}", "./cmd/"+b.program)
	if err != nil {
		return err
	}
	own, err := goCommand(ctx, filepath.Join(o.root, "hack", "image"), b.platform, "list", "-m", "-f", "{{.Version}}\t{{.Dir}}", rootsModule)
	if err != nil {
		return err
	}
	version, folder, _ := strings.Cut(strings.TrimSpace(string(own)), "\t")
	b.roots, b.folders[rootsModule] = debug.Module{Path: rootsModule, Version: version}, folder
	for line := range strings.Lines(string(modules)) {
		if module, folder, found := strings.Cut(strings.TrimSpace(line), "\t"); found {
			b.folders[module] = folder
		}
	}
	return nil
}

// goCommand runs the go command in a folder for a platform and returns what it prints.
func goCommand(ctx context.Context, folder, platform string, args ...string) ([]byte, error) {
	system, arch, _ := strings.Cut(platform, "/")
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = folder
	// Git answers the go command in a repository of another owner, as in a container that builds the host's clone.
	command.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	// Levels of the instruction set and experiments would make another binary of the same sources.
	command.Env = append(command.Env, "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off")
	return outputOf(command)
}

// outputOf runs a command and returns what it prints.
func outputOf(command *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s: %w\n%s", command, err, stderr.String())
	}
	return out, nil
}
