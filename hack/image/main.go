// SPDX-License-Identifier: Apache-2.0

// Command image builds the container images without a container engine.
//
// It compiles cmd/node-cache for every architecture, puts each binary with the certificates and licences it needs into an
// image from scratch, and writes them all as one archive in the OCI image layout, with a bill of materials for each. What it writes
// depends only on its flags, the sources with their commit and its tag, the versions in both go.mod files and the Go release: no
// time, no path and no file of the machine gets into it. Only the Debian packages of the iptables variant come from elsewhere. With -release it writes
// what else a release has: manifests, chart, kubectl plugin, manual pages, notes and checksums, and with -key signatures. image
// push sends an archive to a registry.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

const (
	source    = "https://github.com/nodecache/node-cache"
	imageName = "ghcr.io/nodecache/node-cache" // as the manifests have it
)

// options are what the command line asks for.
type options struct {
	root     string // the repository
	out      string // the folder that gets the archive and the bills of materials
	name     string // the image's name without a tag
	version  string // the tag, and what the binary says of itself
	revision string // the commit, empty if unknown
	created  time.Time
	iptables bool // with the iptables programs
	release  bool
	signer   *signer             // nil: nothing is signed
	programs map[string]*program // those that are compiled, by architecture
}

// tag is the image's tag.
func (o *options) tag() string {
	if o.iptables {
		return o.version + "-iptables"
	}
	return o.version
}

// run does what args ask for, and prints the image's reference by digest.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 3 && args[0] == "push" {
		return push(ctx, args[1], args[2], stdout)
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	images := []bool{o.iptables}
	if o.release && o.iptables {
		images = []bool{false, true}
	}
	files, references := tree{}, ""
	for _, o.iptables = range images {
		reference, err := build(ctx, o, files)
		if err != nil {
			return err
		}
		references += reference + "\n"
	}
	if o.release {
		if err := o.addRelease(ctx, files, references); err != nil {
			return err
		}
	}
	if err := files.write(o.out); err != nil {
		return err
	}
	_, err = io.WriteString(stdout, references)
	return err
}

// parse reads the command line.
func parse(args []string) (*options, error) {
	o := &options{programs: map[string]*program{}}
	var key string
	created := "0"
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", "../..", "the repository")
	flags.StringVar(&o.out, "out", "../../dist", "the folder for the archive")
	flags.StringVar(&o.name, "name", imageName, "the image's name without a tag")
	flags.StringVar(&o.version, "version", "dev", "the image's tag and the binary's version")
	flags.StringVar(&o.revision, "revision", "", "the commit that is built")
	flags.StringVar(&created, "created", created, "the commit's time, in seconds since 1970")
	flags.BoolVar(&o.iptables, "iptables", false, "add the iptables programs, for intercept.backend: iptables")
	flags.BoolVar(&o.release, "release", false, "write everything that a release has; with -iptables both images")
	flags.StringVar(&key, "key", "", "the private key to sign with; a cosign key's password is in COSIGN_PASSWORD")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: only flags are known, and push ARCHIVE NAME:TAG", flags.Arg(0))
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$`).MatchString(o.tag()) {
		return nil, fmt.Errorf("-version %q: no tag of an image", o.version)
	}
	if o.release && !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`).MatchString(o.version) {
		return nil, fmt.Errorf("-version %q: a release has a version like v1.2.3", o.version)
	}
	seconds, err := strconv.ParseInt(created, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reading -created: %w", err)
	}
	o.created = time.Unix(seconds, 0).UTC()
	if key != "" {
		o.signer, err = readKey(key, os.Getenv("COSIGN_PASSWORD"))
	}
	return o, err
}
