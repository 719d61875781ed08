package policy

// workspaceKey is the section that a policy file names the workspace by.
const workspaceKey = "filesystem.workspace"

// Merge applies files in order, the defaults first: lists add, scalars of a
// later file replace, "!entry" removes what an earlier one added. A policy
// file enumerates: unless one of them has a workspace key, or a flag names a
// directory, nothing of the current directory is granted. The error is an
// Errors with every problem.
func Merge(files ...*File) (*Policy, error) {
	p := &Policy{}
	var errs Errors
	enumerated, named := false, false
	for _, f := range files {
		errs = append(errs, f.applyTo(p)...)
		enumerated = enumerated || f.enumerates
		named = named || f.enumerates && f.has(workspaceKey)
	}
	if enumerated && !named && p.Workspace.Source.IsDefault() {
		p.Workspace.Path = ""
	}
	errs = append(errs, p.check()...)
	if len(errs) > 0 {
		return nil, errs.sorted()
	}
	return p, nil
}

// applyTo makes the changes of one file.
func (f *File) applyTo(p *Policy) Errors {
	var errs Errors
	for _, c := range f.changes {
		if failed := c.apply(p); failed != nil {
			e := failed.at(c.src, c.key)
			e.Message = c.key + ": " + e.Message
			errs = append(errs, e)
		}
	}
	return errs
}

// check refuses what no single value shows: clauses that contradict each other
// and grants that need a word under unsafe.
func (p *Policy) check() Errors {
	var errs Errors
	if p.Workspace.Path == "" && p.Workspace.ModeSource.Flag != "" {
		errs = append(errs, wrong("name it: -w DIR", "--mode has no effect: the policy names no workspace").
			at(p.Workspace.ModeSource, "filesystem.workspace.mode"))
	}
	errs = append(errs, p.checkEnv()...)
	errs = append(errs, p.checkSockets()...)
	return append(errs, p.checkMounts()...)
}

// checkEnv keeps credentials of the caller out unless the policy says so.
func (p *Policy) checkEnv() Errors {
	if hasText(p.Unsafe, unsafeCredentialEnv) {
		return nil
	}
	var errs Errors
	for _, name := range p.EnvAllow {
		if SecretName(name.Value) {
			errs = append(errs, needs(unsafeCredentialEnv, name.Source, "env.allowlist", quote(name.Value)+" looks like a credential"))
		}
	}
	return errs
}

// needs is the error of a grant that is made only with a word under unsafe.
func needs(word string, src Source, clause, message string) *Error {
	return wrong("if the command must have it, write unsafe: ["+word+"] in a policy file", "%s: %s", clause, message).at(src, clause)
}
