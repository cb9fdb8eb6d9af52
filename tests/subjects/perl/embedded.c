// A program with embedded Perl, like a web server: one interpreter, or several.
//
//   embedded COUNT
//
// Interpreter N, from 1, runs a sub whose lexical retains a buffer of N * 100,000 bytes. Prints a
// ready line and ends at the end of its input.
#include <EXTERN.h>
#include <perl.h>
#include <XSUB.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 8

int main(int argc, char **argv, char **env) {
    int count = argc > 1 ? atoi(argv[1]) : 1;
    PerlInterpreter *interpreters[MOST];
    char name[] = "embedded", flag[] = "-e", program[200];
    if (count < 1 || count > MOST)
        return 2;
    PERL_SYS_INIT3(&argc, &argv, &env);
    for (int i = 0; i < count; i++) {
        char *arguments[] = {name, flag, program, NULL};
        PerlInterpreter *my_perl = interpreters[i] = perl_alloc();
        PERL_SET_CONTEXT(my_perl);
        perl_construct(my_perl);
        PL_exit_flags |= PERL_EXIT_DESTRUCT_END;
        snprintf(program, sizeof program,
                 "sub inner { my $kept = chr(97 + $_[0]) x ($_[0] * 100000); length $kept } inner(%d)", i + 1);
        if (perl_parse(my_perl, NULL, 3, arguments, NULL) != 0 || perl_run(my_perl) != 0)
            return 3;
    }
    printf("{\"interpreters\":%d}\n", count);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0 && byte != 'q')
        continue;
    _exit(0);
}
