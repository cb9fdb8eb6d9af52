// A program with an embedded Java virtual machine: it allocates memory from malloc, creates the
// machine, and runs Subject, which obeys commands on standard input.
//
//   embedded LIBJVM CLASSES [OPTION …]
#include <dlfcn.h>
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTIONS 16

typedef jint (*create)(JavaVM **, void **, void *);

static void *own[1000];

int main(int count, char **words) {
    if (count < 3 || count - 2 > MAX_OPTIONS) return 2;
    void *library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    create create_vm = (create)dlsym(library, "JNI_CreateJavaVM");
    for (int n = 0; n < 1000; n++) own[n] = memset(malloc(4000), 1, 4000);
    char classes[4096];
    snprintf(classes, sizeof classes, "-Djava.class.path=%s", words[2]);
    JavaVMOption options[MAX_OPTIONS] = {{.optionString = classes}};
    for (int n = 3; n < count; n++) options[n - 2].optionString = words[n];
    JavaVMInitArgs arguments = {.version = JNI_VERSION_10, .nOptions = count - 2, .options = options};
    JavaVM *vm;
    JNIEnv *env;
    if (!create_vm || create_vm(&vm, (void **)&env, &arguments) != JNI_OK) return 3;
    jclass subject = (*env)->FindClass(env, "Subject");
    jclass text = (*env)->FindClass(env, "java/lang/String");
    if (!subject || !text) return 3;
    jmethodID method = (*env)->GetStaticMethodID(env, subject, "main", "([Ljava/lang/String;)V");
    if (!method) return 3;
    (*env)->CallStaticVoidMethod(env, subject, method, (*env)->NewObjectArray(env, 0, text, NULL));
    return own[999] ? 0 : 1;
}
