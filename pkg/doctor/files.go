// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Bounds of what this process reads of others, which may be hostile.
const (
	maxFile      = 64 << 10        // bytes of a file
	fileTimeout  = time.Second     // of one file
	filesTimeout = 5 * time.Second // of all files
)

// A fileRequest is a file of another process.
type fileRequest struct {
	Root string `json:"root"` // a folder that stands for /, such as /proc/7/root
	Path string `json:"path"`
}

// content is what a file has.
type content struct {
	Missing bool   `json:"missing"` // there is no such file, or no such process
	Text    []byte `json:"text"`
	Device  uint64 `json:"device"` // with Inode: identifies the file
	Inode   uint64 `json:"inode"`
}

// read reads a regular file. It resolves links in the root, and opens nothing before it knows that it is such a file: to
// open a device acts on it. It may block, in a file system that the other process serves.
func (r *fileRequest) read() (c content, err error) {
	failed := func(err error) (content, error) {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			return content{Missing: true}, nil
		}
		if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
			err = inner.Err
		}
		return content{}, fmt.Errorf("reading %s: %w", r.Path, err)
	}
	root, err := unix.Open(r.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = unix.Close(root) }()
	// The links of /proc lead out of every root, by design.
	fd, err := unix.Openat2(root, r.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return failed(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var info unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &info), unix.Fstatfs(fd, &system)); err != nil {
		return failed(err)
	}
	switch c.Device, c.Inode = info.Dev, info.Ino; {
	case info.Mode&unix.S_IFMT != unix.S_IFREG:
		return failed(errors.New("not a regular file"))
	case info.Size == 0: // as have files of /proc and its like, some of which block, or forget what they have reported
		return c, nil
	case system.Type == unix.SYSFS_MAGIC: // a file of a device may act on it
		return failed(errors.New("a file of sysfs"))
	}
	if c.Text, err = filewatch.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd), maxFile); err != nil {
		return failed(err)
	}
	return c, nil
}

// errSlow is the error of a file that takes longer than fileTimeout.
var errSlow = fmt.Errorf("it takes longer than %s", fileTimeout)

// A readFunc reads the file path below the folder root.
type readFunc func(ctx context.Context, root, path string) (content, error)

// A fileReader reads files in a child: a process that waits for a file system may not even end when it is killed.
type fileReader struct {
	command []string // that calls [Serve]
	child   *child   // nil: none yet, or the last one is lost
}

// read is a [readFunc]. It takes at most fileTimeout.
func (r *fileReader) read(ctx context.Context, root, path string) (c content, err error) {
	if len(r.command) == 0 {
		return c, errors.New("not requested")
	}
	if r.child == nil {
		if r.child, err = startChild(r.command, nil, nil); err != nil {
			return c, fmt.Errorf("starting a child process: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	reply, err := r.child.do(ctx, message{File: &fileRequest{Root: root, Path: path}})
	if ctx.Err() != nil || err != nil && reply.Error == "" {
		r.close()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return c, fmt.Errorf("reading %s: %w", path, errSlow)
	case err != nil:
		return c, err
	case reply.Content == nil:
		return c, fmt.Errorf("reading %s: no reply", path)
	}
	return *reply.Content, nil
}

// close ends the child. It does not wait: the child may be stuck.
func (r *fileReader) close() {
	if r.child != nil {
		r.child.stop()
		r.child = nil
	}
}
